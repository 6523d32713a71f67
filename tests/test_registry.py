"""Sampler specs: what each makes, and what a wrong one is told."""

import re

import pytest

from engine.config import Limits
from engine.samplers.improv import Improv
from engine.samplers.paced import Pace, Paced
from engine.samplers.policy import PolicySampler
from engine.samplers.registry import make_sampler
from engine.samplers.scripted import END, Scripted

LIMITS = Limits(tick_seconds=0.25)
SCRIPT = [[END]]


def test_paced_alone_is_improv_at_the_default_pace():
    """`paced` has every number at its default, and the tick of the limits."""
    sampler = make_sampler("paced", LIMITS)
    expected = (Paced, Improv, Pace(), 0.25, 3, 40)
    source = sampler._source
    assert expected == (
        type(sampler),
        type(source),
        sampler._pace,
        sampler._ticker.tick_seconds,
        source._calls,
        source._words,
    )


def test_paced_takes_its_numbers():
    """Every number of a `paced` spec arrives where it belongs."""
    sampler = make_sampler("paced:rate=1000,first=0.02,prefill=5,jitter=0.5,seed=7,calls=5,words=9", LIMITS)
    pace = Pace(
        tokens_per_second=1000.0,
        first_token_seconds=0.02,
        prefill_tokens_per_second=5.0,
        jitter=0.5,
        seed=7,
    )
    assert (pace, 5, 9) == (sampler._pace, sampler._source._calls, sampler._source._words)
    assert int is type(sampler._pace.seed)


def test_a_policy_is_paced():
    """`policy:` wraps the program at the path, at the pace after the question mark."""
    sampler = make_sampler("policy:demos.agents.repair?rate=500", LIMITS)
    assert (Paced, PolicySampler, Pace(tokens_per_second=500.0)) == (
        type(sampler),
        type(sampler._source),
        sampler._pace,
    )


def test_a_script_is_played_as_it_is():
    """`scripted:` is not paced."""
    sampler = make_sampler(f"scripted:{__name__}:SCRIPT", LIMITS)
    assert (Scripted, SCRIPT) == (type(sampler), sampler._script)


THERE_ARE = "there are paced[:rate=N,first=S,calls=N], policy:MODULE[:NAME][?rate=N], scripted:MODULE:NAME"
NUMBERS = "there are rate, first, prefill, jitter, seed"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", f"no sampler ''; {THERE_ARE}"),
        ("gpt", f"no sampler 'gpt'; {THERE_ARE}"),
        ("policy", f"no sampler 'policy'; {THERE_ARE}"),
        ("scripted:", f"no sampler 'scripted:'; {THERE_ARE}"),
        ("paced:speed=1", f"sampler 'paced:speed=1': no number 'speed'; {NUMBERS}, calls, words"),
        ("policy:demos.agents.repair?calls=1", f"no number 'calls'; {NUMBERS}"),
        ("paced:rate=fast", "sampler 'paced:rate=fast': rate='fast' is not a number"),
        ("paced:rate", "sampler 'paced:rate': rate='' is not a number"),
        ("paced:rate=nan", "sampler 'paced:rate=nan': rate='nan' is not a number"),
        ("paced:calls=inf", "sampler 'paced:calls=inf': calls='inf' is not a number"),
        ("paced:rate=0", "sampler 'paced:rate=0': rate=0 is too small"),
        ("paced:prefill=0", "sampler 'paced:prefill=0': prefill=0 is too small"),
        ("paced:jitter=-1", "sampler 'paced:jitter=-1': jitter=-1 is too small"),
        ("policy:no.such", "no policy 'no.such': cannot import 'no.such'"),
        ("scripted:no.such:S", "sampler 'scripted:no.such:S': No module named 'no'"),
        ("scripted:json:S", "sampler 'scripted:json:S': module 'json' has no attribute 'S'"),
        ("scripted::S", "sampler 'scripted::S': Empty module name"),
    ],
)
def test_a_wrong_spec_is_told_what_there_is(spec, message):
    """Each mistake names the spec, the word, and what would be right."""
    with pytest.raises(ValueError, match=re.escape(message)):
        make_sampler(spec, LIMITS)


def test_nothing_to_wait_for_is_allowed():
    """A first token at once, no jitter, and no calls are good numbers; an empty pair is passed over."""
    sampler = make_sampler("paced:first=0,,jitter=0,calls=0", LIMITS)
    assert (0.0, 0.0, 0) == (sampler._pace.first_token_seconds, sampler._pace.jitter, sampler._source._calls)


# --- over tokens -----------------------------------------------------------------------------------------------------

SMALL = "vllm:http://127.0.0.1:1?model=m&format=chatml&tokenizer=qwen3"


def test_a_backend_gets_its_format_and_both_their_options():
    """What belongs to the format and to the sampling is taken; the rest goes to the backend."""
    sampler = make_sampler(f"{SMALL}&strict=yes&thinks=yes&retries=2&temperature=0.5&context=99", LIMITS)
    options = sampler.format._options
    assert ("chatml", True, True) == (sampler.format.name, options.strict, options.thinks)
    assert (2, 0.5) == (sampler.options.retries, sampler.options.temperature)
    assert ("VllmBackend", 99) == (type(sampler.backend).__name__, sampler.backend.context_tokens)


def test_a_chat_endpoint_is_a_sampler_of_its_own():
    """It takes text, so it has no format."""
    sampler = make_sampler("chat:http://127.0.0.1:1/v1?model=m", LIMITS)
    assert ("ChatSampler", "m") == (type(sampler).__name__, sampler.model)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("llama:", f"no sampler 'llama:'; {THERE_ARE}"),
        ("llama:nosuch", "sampler 'llama:nosuch': llama: no weights are called 'nosuch'"),
        (
            "vllm:http://127.0.0.1:1",
            "which format does the model speak? Write format=, one of chatml, harmony",
        ),
        ("vllm:http://127.0.0.1:1?format=chatml", "which vocabulary does the model have? Write tokenizer="),
        ("vllm:http://127.0.0.1:1?format=chatml&tokenizer=no.gguf", "No such file or directory: 'no.gguf'"),
        (f"{SMALL}&retries=x", "retries='x' is no number that it can be"),
        (f"{SMALL}&temperature=-1", "temperature='-1' is no number that it can be"),
        (f"{SMALL}&top_p=inf", "top_p='inf' is no number that it can be"),
        (f"{SMALL}&loud=yes", "vllm: no option 'loud'"),
    ],
)
def test_what_is_wrong_with_a_backend_is_said(spec, message):
    """The spec, what is wrong with it, and what to write."""
    with pytest.raises(ValueError, match=re.escape(message)):
        make_sampler(spec, LIMITS)
