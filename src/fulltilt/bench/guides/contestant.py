"""One contestant, alone in its process: clean CUDA state, clean switches, nothing left over from another.

python -m fulltilt.bench.guides.contestant ORDER
"""

from __future__ import annotations

import importlib
import logging
import sys

from fulltilt.bench.ground import ending_at_sigterm, said
from fulltilt.bench.guides.order import CONTESTANTS, Answer, Order


def main(text: str) -> int:
    order = Order.from_json(text)
    one = next(one for one in CONTESTANTS if one.key == order.contestant)
    logging.getLogger("fulltilt").addHandler(logging.NullHandler())
    answer = Answer()
    try:
        with ending_at_sigterm():
            importlib.import_module(f"fulltilt.bench.guides.{one.module}").run(order, answer)
    except Exception as error:
        answer.problem = said(error)
        raise
    finally:
        answer.write(order.answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
