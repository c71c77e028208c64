"""The guides' workloads before and after, and with Lightning and Accelerate. Behind `fulltilt bench guides`.

run.py (this process)                            contestant.py (a fresh process for each)
  data made ─► before ─► after ─► peers ───order──►  before.py  after.py  with_lightning.py  with_accelerate.py
  watch.py: the GPU, read from outside   ◄─findings─   meter.py: rates, waiting; the clock that ends it

claims.py    what the guides say, and what is wanted     figures.py   results, targets, JSON: no effects
order.py     what a contestant is asked and answers       table.py, chart.py   what is shown
setting.py   what each begins with                       peer.py      how those that are not ours are measured
"""
