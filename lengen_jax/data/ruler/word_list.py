"""English words: keys of needles, and the words of lists."""

ADJECTIVES = tuple(
  """
  able absent active actual adult aerial afraid agile alert alive amber ample
  ancient angry annual anxious arctic aware awful awkward bald bare basic
  bitter blank bleak blind blond blue blunt bold brave brief bright brisk
  broad broken bronze brown busy calm careful careless central charming cheap
  cheerful chilly civil clean clear clever close cloudy clumsy coarse cold
  colossal comic common complete complex cool correct costly cosy crisp
  crooked crowded crude cruel curious curly current damp dark dear deep
  delicate dense distant divine double doubtful dry dull dusty eager early
  earnest easy edible elastic elderly elegant eligible empty endless enormous
  entire equal eternal even exact exotic extra faint fair faithful false
  famous fancy fast fatal fearless feeble fertile fierce final fine firm flat
  flexible foggy fond foolish formal fragile frank free frequent fresh
  friendly frozen full funny furious general generous gentle giant glad global
  gloomy glossy golden graceful grand grateful grave gray greasy great greedy
  green grim handy happy hard harmless harsh hasty healthy heavy helpful
  hidden hollow holy honest hopeful hot huge humble humid hungry icy ideal
  idle immense impatient infinite inner innocent instant intense jealous joint
  jolly joyful junior keen kind large last late lazy lean legal level light
  likely lively local lonely long loose loud lovely low loyal lucky mad magic
  main major marine mature mellow merry mighty mild minor misty mobile modern
  modest moist mute narrow nasty native natural neat nervous neutral new
  nimble noble noisy normal northern obvious odd official old open optimal
  oral orange ordinary original outer oval pale partial patient peaceful
  perfect petty plain playful pleasant plump polite poor popular possible
  precious precise pretty prime private proper proud public pure purple quick
  quiet random rapid rare raw ready real recent red regal regular reliable
  remote rich rigid ripe robust rosy rotten rough round royal rude rural rusty
  sacred sad safe salty sane scarce secret secure selfish senior separate
  serene serious severe shallow sharp shiny short shy sick silent silky silly
  silver similar simple sincere single skilful sleepy slender slight slim
  slippery slow sly small smart smooth sober social soft solar solemn solid
  sore sour southern spare special spicy splendid square stale stable steady
  steep sticky stiff still stormy strange strict strong stubborn sturdy subtle
  sudden sunny superb sure sweet swift tall tame tart tender tense thick thin
  thirsty tidy tight timid tiny tired total tough tragic tranquil tricky
  tropical true typical ugly unique united upper urban urgent useful usual
  vacant vague valid vast violet visible vital vivid warm wary weak wealthy
  weary weird western wet white whole wicked wide wild willing windy wise
  witty wooden worthy yellow young zealous
  """.split()
)
NOUNS = tuple(
  """
  abbey accent accident account acid acorn actor address admiral adventure
  advice affair agency agent agreement air airport aisle alarm album alley
  alliance almanac almond alphabet altar amount anchor angel angle animal
  ankle answer ant anthem antique anvil ape apple apricot apron arcade arch
  archer area arena argument arm armour army aroma arrow art article artist
  ash assembly atlas atom attic audience aunt author autumn avalanche avenue
  award axe axis axle baby bacon badge badger bag baker bakery balcony ball
  ballad balloon ballot bamboo banana band bandage banjo bank banker banner
  banquet bar barber bargain barge bark barley barn barrel barrier base basin
  basket bat bath battery battle bay beach beacon bead beak beam bean bear
  beard beast beauty beaver bed bedroom bee beef beetle beggar bell belt bench
  berry bible bicycle bill bird birth biscuit bishop bite blade blanket blaze
  blessing block blood blossom blouse board boat body boiler bolt bomb bone
  bonfire bonnet bonus book boot border bottle bottom boulder bow bowl box
  boxer boy bracelet brain brake branch brass bread breakfast breath breeze
  brick bride bridge broom broth brother brush bubble bucket buckle bud budget
  buffalo bug building bulb bull bullet bundle burden bureau burger bus bush
  butcher butler butter butterfly button cabbage cabin cabinet cable cactus
  cafe cage cake calendar calf camel camera camp canal canary candle candy
  cane cannon canoe canvas canyon cap cape capital captain car caramel caravan
  carbon card career cargo carnival carpet carriage carrot cart carton cartoon
  cashew castle cat catalog cathedral cattle cave ceiling celery cell cellar
  cello cement census centre century ceremony chain chair chalk chamber
  champion chance channel chapel chapter charcoal chariot chart charter chase
  cheek cheese chef cherry chess chest chestnut chicken chief child chimney
  chin chip chocolate choice choir chorus church cider cigar cinema circle
  circuit circus citizen city clarinet class claw clay clerk cliff climate
  clinic cloak clock closet cloth cloud clove clover clown club clue coach
  coal coast coat cobra cobweb coconut code coffee coin collar college colony
  colour column comb comedy comet comma command company compass concert cone
  contest contract cook cookie copper copy coral cord corn corner corridor
  costume cottage cotton couch cough council counter country couple courage
  court cousin cover cow coyote crab cradle craft crane crater crayon cream
  creature creek crew cricket crime crocodile crop cross crow crowd crown
  cruise crumb crust crystal cube cucumber cup cupboard curb cure curtain
  curve cushion custom customer cycle cylinder cymbal daisy dam dance dancer
  danger date daughter dawn day deal debate debt decade decision deck deer
  defeat degree delay demand dentist depot depth desert desk dessert detail
  device dew dialect diamond diary dice dictionary diet dinner diploma dirt
  disc dish ditch diver doctor document dog doll dollar dolphin dome donkey
  door dough dove dragon drain drama drawer dream dress drill drink driver
  drop drum duchess duck duel duet duke dungeon dusk dust duty dwarf eagle ear
  earring earth easel east echo eclipse edge editor eel effect effort egg
  elbow election elephant elevator elm embassy ember emerald emperor empire
  end enemy energy engine engineer envelope envoy epoch error essay estate
  evening event evidence exam example exchange exit expert eye eyebrow fable
  fabric face factory falcon fall family fan farm farmer fashion father faucet
  feast feather fee fence fern ferry festival fever fiddle field fig fight
  figure film filter finger fire firefly fish fist flag flame flask flavour
  flea fleet flesh flight flock flood floor flour flower flute foam fog folder
  folk food fool foot football footprint forehead forest fork form fort
  fortune forum fossil foundation fountain fox frame freckle freezer freight
  friend frog frontier frost fruit fuel funeral fur furnace furniture fuse
  future gadget galaxy gallery gallon game gap garage garden gardener garlic
  garment gas gate gazelle gear gem ghost gift ginger giraffe girl glacier
  glass globe glove glue goal goat gold golf goose gorge gorilla gossip
  government governor gown grain grammar granite grape graph grass gravel
  gravity grease grip grocer groom ground group grove guard guess guest guide
  guitar gulf gull gum gun guy gym habit hail hair hall hammer hammock hamster
  hand handle harbour hare harm harmony harness harp harvest hat hatchet hawk
  hay hazel head health heap heart heat hedge heel height helmet help hen herb
  herd hermit hero heron herring highway hill hinge hint history hobby hockey
  hole holiday home honey hood hoof hook hope horizon horn horse hose hospital
  hostel hotel hour house human humour hunter hurdle hut hyena ice icicle idea
  idol image impulse inch income index infant ink inn insect inside iron
  island ivory ivy jackal jacket jaguar jail jam jar jasmine jaw jazz jelly
  jester jet jewel job joke journal journey joy judge jug juice jump jungle
  juniper juror jury kangaroo kernel kettle key kidney king kingdom kiosk kiss
  kitchen kite kitten knee knife knight knob knot label labour lace ladder
  lady lagoon lake lamb lamp land lane language lantern lap lark latch
  laughter laundry lava lavender law lawn lawyer layer leader leaf league
  leather lecture leg legend lemon lens leopard lesson letter lettuce lever
  library licence lid life lighthouse lily limb lime limit line linen lion lip
  liquid list litter liver lizard loaf lobby lobster lock locker log logic
  lotus lounge love luck luggage lumber lunch lung lute lyric machine magazine
  magnet magpie maid mail mammal man mango manor mansion mantle manual map
  maple marble march margin market marsh mask mast master mat match material
  mattress mayor maze meadow meal measure meat medal medicine melody melon
  member memory menu merchant mercury mermaid message metal meteor method
  midnight mile milk mill miller mine miner mineral minister mint minute
  miracle mirror mission mist mistake mitten mixture moat model moment monarch
  money monk monkey monster month monument mood moon moose morning mosaic
  mosque mosquito moss moth mother motion motor mountain mouse mouth movie mud
  muffin mule muscle museum mushroom music mustard mystery myth nail name
  napkin nation nature navy neck necklace needle neighbour nephew nerve nest
  net nettle news newspaper night noodle noon north nose note notebook notice
  novel number nurse nut nutmeg oak oar oasis oat ocean octopus odour office
  officer oil ointment olive onion opera opinion orbit orchard orchestra
  orchid order organ ornament orphan ostrich otter oven owl owner ox oxygen
  oyster pace package paddle page pail pain paint painter pair palace palm pan
  pancake panda panel panic panther paper parade paragraph parcel parent park
  parrot parsley part partner party passage passenger passport pasta pastry
  patch path patrol pattern pause paw payment pea peach peacock peak peanut
  pear pearl peasant pebble pedal peel pelican pen pencil penguin penny people
  pepper perfume period person petal phone photo phrase piano picnic picture
  pie piece pier pig pigeon pile pill pillar pillow pilot pin pine pioneer
  pipe pirate pistol pit pitcher pizza place planet plank plant plaster plate
  platform player plaza plot plough plum plumber pocket poem poet point poison
  pole policy pond pony pool poppy porch port portrait pot potato pottery
  pouch powder power prairie prayer present president price priest prince
  princess printer prison prize problem process product profit promise proof
  property protest prune puddle pulse pump pumpkin punch pupil puppet puppy
  purse puzzle pyramid quarrel quarry quarter queen quest question quill quilt
  quiz rabbit raccoon race radar radio radish raft rag rail railway rain
  rainbow raisin ramp ranch range rat raven ray razor reader reason rebel
  recipe record reef region relic rent report reptile republic request rescue
  reserve resort rest result reward rhyme rhythm rib ribbon rice riddle rider
  ridge rifle rim ring river road robe robin robot rock rocket rod roof room
  rooster root rope rose route row rubber ruby rug ruin rule ruler rumour
  runner saddle safari sail sailor saint salad salary sale salmon salt sample
  sand sandal sandwich sapphire satin sauce sausage saw scale scar scarf scene
  scent scholar school science scissors score scorpion scout screen screw
  scroll sculptor sea seal season seat second secretary seed senate sentence
  servant session shade shadow shaft shape shark shed sheep sheet shelf shell
  shelter shepherd sheriff shield ship shirt shoe shop shore shoulder shovel
  shower shrimp shrub side sign signal silk sink siren sister skeleton skill
  skin skirt skull sky slate sleeve slice slide slope smell smile smoke snack
  snail snake snow soap soccer sock sofa soil soldier son song soul sound soup
  source south space spade spark sparrow speaker spear speech spell sphere
  spice spider spike spine spiral spirit sponge spoon sport spot spring spur
  spy squad squirrel stadium staff stage stain stair stamp star starfish state
  statue steak steam steel stem step stew stick sting stitch stocking stomach
  stone stool stop store stork storm story stove stranger straw stream street
  strike string student studio style subject suburb subway success sugar suit
  sulphur summer summit sun sunset surface surgeon swamp swan sweater swing
  sword symbol symphony syrup system table tablet tail tailor tale talent tank
  tape target task tavern tax taxi tea teacher team tear telescope temple
  tennis tent term terrace test text thanks theatre theory thief thigh thing
  thorn thought thread throat throne thumb thunder ticket tide tiger tile
  timber time tin title toad toast tobacco toe toilet tomato tomb tongue tool
  tooth topaz topic torch tortoise touch towel tower town toy track tractor
  trade trail train traitor trap travel tray treasure treaty tree trench trial
  triangle tribe trick tripod trophy trouble trousers trout truck trumpet
  trunk trust truth tube tulip tuna tunnel turkey turnip turtle tutor twig
  twin umbrella uncle uniform union universe valley valve vampire vase vault
  vehicle veil vein velvet verb verdict verse vessel victim victory video view
  villa village vine vinegar violin virtue virus visit visitor voice volcano
  volume vote voyage vulture wafer wage wagon waist waiter walk wall wallet
  walnut walrus war warden warehouse warrior wasp watch water wave wax way
  weapon weather weaver web wedding week weight well west whale wharf wheat
  wheel whip whisker whistle wick widow wife wig wind window wine wing winter
  wire wish witch witness wizard wolf woman wood wool word work worker
  workshop world worm wound wreath wreck wrench wrist writer yacht yard yarn
  year yeast yolk youth zebra zenith zinc zone zoo
  """.split()
)
