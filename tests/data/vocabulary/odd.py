"""Texts that vocabularies must restore."""

ODD = (
  '\ttab\t\tand  double   spaces \n\n new\r\nlines  ',
  '漢字かな交じり文, 한국어; \u200fעברית',
  'emoji 😀👩\u200d👩\u200d👧 e\u0301 é \ufeff',
  '\x00\x01 <unk></s><pad> <0x41> ⁇ \xa0\u2028\x85',
  ' ',
  '',
)
