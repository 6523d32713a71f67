"""The vocabulary: text stays text, markers are numbers, long texts cost linear time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import vocabulary
from engine.vocabulary import MARKERS, PIECE_CHARACTERS, decode, encode, is_special, pieces, special_spellings

SPELLINGS = sorted(special_spellings())
LOOK_ALIKES = [spelling.replace("|", "\uff5c") for spelling in MARKERS]


def hostile_texts():
    """Ordinary text mixed with spellings of control tokens, parts of them and look-alikes."""
    fragments = st.sampled_from(
        [*SPELLINGS[:40], *MARKERS, *LOOK_ALIKES, "<|", "|>", "<\uff5c", "start", "😀", "中"]
    )
    return st.lists(st.one_of(st.text(max_size=12), fragments), max_size=12).map("".join)


@given(hostile_texts())
def test_encoded_text_decodes_to_itself_without_special_ids(text):
    """Any text comes back from its ids, and none of them is special."""
    ids = encode(text)
    assert text == decode(ids)
    assert not any(map(is_special, ids))


@pytest.mark.parametrize("joint", ["", "\u200b", "\uff5c", " ", "<"])
def test_no_spelling_of_a_control_token_becomes_one(joint):
    """Every special token of the vocabulary, broken at every position, is literal text."""
    for spelling in SPELLINGS:
        for cut in range(len(spelling) + 1):
            text = spelling[:cut] + joint + spelling[cut:]
            ids = encode(text)
            assert text == decode(ids)
            assert not any(map(is_special, ids))


def test_the_vocabulary_has_all_reserved_tokens():
    """The spellings tested here are all 1,091 special tokens, the seven markers among them."""
    expected = 1091
    assert expected == len(SPELLINGS)
    assert set(MARKERS) <= set(SPELLINGS)
    assert all(map(is_special, MARKERS.values()))


@given(st.integers(0, 600), st.sampled_from(["a", "a b ", "😀", "\n ", "=", "<|start|>"]))
def test_pieces_are_bounded_and_join_to_the_text(extra, unit):
    """Pieces are never empty nor above the bound, and nothing is lost between them."""
    text = unit * ((2 * PIECE_CHARACTERS + extra) // len(unit))
    cut = list(pieces(text))
    assert text == "".join(cut)
    assert all(0 < len(piece) <= PIECE_CHARACTERS for piece in cut)


@given(
    st.lists(
        st.sampled_from(
            ["tool", "Antwort", "it's", "42", "x,", "😀", "na\u00efve", "", "\n", "\t", "==", "(see"]
        ),
        min_size=1,
        max_size=9,
    )
)
def test_prose_has_the_ids_it_has_as_a_whole(words):
    """Where a space before a letter is near the bound, cutting does not show in the ids."""
    text = " ".join(["some", *words, "plain", "words"] * (2 * PIECE_CHARACTERS // 30))
    whole = vocabulary._tokenizer().encode_ordinary(text)
    assert whole == encode(text)


@pytest.mark.parametrize("character", ["a", " ", "\n", "=", "\u0301", "中", "😀", "1"])
def test_four_mebibytes_of_one_character_are_cut_into_equal_small_pieces(character):
    """The tokenizer sees at most the bound at a time, so its work grows with the number of pieces only."""
    text = character * (4 * 1024 * 1024)
    lengths = {len(piece) for piece in pieces(text)}
    assert {PIECE_CHARACTERS} == lengths
    one_piece = encode(text[:PIECE_CHARACTERS])
    assert one_piece * (len(text) // PIECE_CHARACTERS) == encode(text)


def test_a_lone_surrogate_is_refused_by_name():
    """Text that has no UTF-8 raises `ValueError`, which says what to do."""
    with pytest.raises(ValueError, match="lone surrogate; refuse it where it enters"):
        encode("x\ud83d")


def test_the_installed_vocabulary_passes_the_check():
    """The start-up check accepts the vocabulary this project depends on."""
    vocabulary.check_vocabulary()


def test_another_vocabulary_is_refused():
    """A vocabulary with other ids raises `VocabularyError` with the way out."""
    import quicktok

    with pytest.raises(vocabulary.VocabularyError, match=r"install quicktok-v1==0\.4\.0"):
        vocabulary._check(quicktok.get_encoding("cl100k_base"))


def test_a_vocabulary_without_the_markers_is_refused():
    """The plain o200k vocabulary encodes alike but lacks the control tokens, and is told apart."""
    import quicktok

    with pytest.raises(vocabulary.VocabularyError, match=r"no control token <\|return\|> with id 200002"):
        vocabulary._check(quicktok.get_encoding("o200k_base"))
