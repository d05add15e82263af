"""Weights side by side in large pages: the same numbers, kept for as long as one of them is."""

import errno
import mmap
import pathlib

import psutil
import pytest
import torch

from specviz.passes.kernels.few_rows import FewRows
from specviz.passes.kernels.huge_pages import HugePages

LARGE_PAGES = pathlib.Path("/sys/kernel/mm/transparent_hugepage")


def flags(address: int) -> str:
    """What Linux says of the memory at an address."""
    found = False
    for line in pathlib.Path("/proc/self/smaps").read_text("ascii", errors="replace").splitlines():
        first, *rest = line.split()
        if "-" in first and len(rest) >= 4:
            begin, end = (int(bound, 16) for bound in first.split("-"))
            found = begin <= address < end
        elif found and first == "VmFlags:":
            return line
    raise AssertionError("memory that is mapped nowhere")


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int8, torch.uint16, torch.int64))
def test_tensors_hold_what_was_joined_and_do_not_touch_each_other(dtype):
    pages, generator = HugePages(), torch.Generator().manual_seed(0)
    made = []
    for count in (1, 3, 7, 0, 40):
        parts = [torch.randint(0, 100, (count, 5, 3), generator=generator).to(dtype) for _ in range(2)]
        made.append((pages.joined(parts), parts))
    for joined, parts in made:
        assert joined.dtype == dtype and joined.is_contiguous() and joined.data_ptr() % 64 == 0
        assert joined.tolist() == [row for part in parts for row in part.tolist()]


def test_what_is_larger_than_what_is_reserved_at_a_time_has_room_too():
    pages = HugePages()
    small, large = torch.ones(1, 16), torch.arange(20 << 20).view(-1, 1 << 10).int()
    before, joined, after = pages.joined([small]), pages.joined([large]), pages.joined([2 * small])
    assert before.equal(small) and joined.equal(large) and after.equal(2 * small)


def test_large_pages_are_asked_for_where_the_system_has_them():
    joined = HugePages().joined([torch.ones(1 << 20)])
    assert LARGE_PAGES.is_dir() is (" hg" in flags(joined.data_ptr()))


def test_where_none_are_to_be_had_tensors_lie_elsewhere(monkeypatch):
    def none(*arguments):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", none)
    assert HugePages().joined([torch.ones(3, 2), torch.zeros(1, 2)]).tolist() == [[1, 1], [1, 1], [1, 1], [0, 0]]


def test_memory_goes_with_the_last_tensor_in_it():
    process, size = psutil.Process(), 64 << 20
    before = process.memory_info().vms
    pages = HugePages()
    first, second = pages.joined([torch.ones(1 << 20)]), pages.joined([torch.ones(1 << 20)])
    assert process.memory_info().vms - before > size
    del pages, first
    assert second.sum() == 1 << 20 and process.memory_info().vms - before > size
    del second
    assert process.memory_info().vms - before < size / 2


def test_a_models_weights_lie_one_after_the_other_in_the_order_in_which_they_are_read():
    layers = torch.nn.Sequential(*[torch.nn.Linear(64, 64, bias=False) for _ in range(4)])
    packing, pages = FewRows.ready(), HugePages()
    packed = [packing.linear(layer.weight.detach(), pages=pages) for layer in layers]
    places = [layer.panels.data_ptr() for layer in packed]
    assert places == sorted(places) and places[-1] - places[0] < 4 * 2 * 64 * 64 * 4
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    for layer, kept in zip(layers, packed, strict=True):
        torch.testing.assert_close(kept(x), layer(x).detach(), rtol=1e-5, atol=1e-5)
