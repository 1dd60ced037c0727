import random

from control_plane.core.pages.page_tables import PageHashes


def page_names(token_ids, salt="", page_tokens=4):
    return PageHashes(token_ids, salt).first(page_tokens, len(token_ids) // page_tokens)


def test_equal_starts_have_equal_names():
    assert page_names([1, 2, 3, 4, 5, 6, 7, 8])[0] == page_names([1, 2, 3, 4, 9, 9, 9, 9])[0]


def test_a_name_covers_everything_before_the_page():
    assert page_names([1, 2, 3, 4, 5, 6, 7, 8])[1] != page_names([9, 2, 3, 4, 5, 6, 7, 8])[1]


def test_salts_and_page_sizes_keep_names_apart():
    tokens = list(range(8))
    names = [page_names(tokens)[0], page_names(tokens, "a")[0], page_names(tokens, "b")[0], page_names(tokens, page_tokens=2)[0]]
    assert len(set(names)) == 4


def test_pfx_03_tokens_that_collide_under_rolling_hashes_do_not_collide():
    base = list(range(100, 116))
    names = {page_names(base, page_tokens=16)[0]}
    for index in range(15):
        changed = base.copy()
        changed[index] += 31
        changed[index + 1] -= 1
        names.add(page_names(changed, page_tokens=16)[0])
    assert len(names) == 16


def test_pfx_03_random_pages_have_different_names():
    tokens = random.Random(1).choices(range(50_000), k=16 * 200_000)
    names = [page_names(tokens[start : start + 16], page_tokens=16)[0] for start in range(0, len(tokens), 16)]
    assert len(set(names)) == 200_000
    assert all(len(name) == 32 for name in names)


def test_names_grow_with_the_tokens():
    tokens = [1, 2, 3, 4]
    hashes = PageHashes(tokens, "")
    first = list(hashes.first(4, 1))
    tokens += [5, 6, 7, 8]
    assert hashes.first(4, 2)[:1] == first
    assert hashes.first(4, 2) == page_names(tokens)


def test_adopted_names_are_those_of_the_tokens():
    tokens, hashes = list(range(10)), PageHashes([*range(10), 1, 2, 3], "")
    hashes.first(4, 3)
    sibling = PageHashes([*range(10), 7, 8], "")
    sibling.adopt(hashes, len(tokens))
    assert sibling.num_tokens == 8
    assert sibling.first(4, 3) == page_names([*range(10), 7, 8])
