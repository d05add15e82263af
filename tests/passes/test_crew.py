"""Threads that share work (crew.h): each piece is done once, whoever comes or stays away."""

import shutil
import subprocess

from specviz.passes.kernels.kernel_library import SOURCES, cxx

#: Two threads have many small jobs done, which only one at a time gets help with; then forked processes, which have
#: none of these helpers, do the same, in whatever state those were. Prints how many pieces were not done exactly once,
#: and whether helpers are ever said to have done more than all of a job.
SHARING = """
#include <sys/wait.h>
#include <unistd.h>
#include <cstdio>
#include <vector>
#include "crew.h"

int wrong_pieces(unsigned random) {
  int wrong = 0;
  for (int job = 0; job < 1000; job++) {
    random = random * 1664525 + 1013904223;
    const int64_t count = 1 + random % 300, piece = 1 + (random >> 16) % 5;
    std::vector<int> done(count);
    crew().share(count, piece, [&](int64_t first, int64_t end) {
      for (; first < end; first++) {
        done[first]++;
        for (volatile unsigned pause = 0; pause < random >> 25; pause = pause + 1) {}
      }
    });
    for (int times : done) wrong += times != 1;
    if (job % 100 == 0) usleep(1500);  // helpers fall asleep
  }
  return wrong;
}

// The largest share of a job's pieces that is said to be helpers'. The calling thread waits in its first piece, for a
// tenth of a second at most, until they have done what they can: they take what it has not begun half by half.
double most_help() {
  using Clock = std::chrono::steady_clock;
  const auto own = std::this_thread::get_id();
  double most = 0;
  for (int job = 0; job < 20; job++) {
    Crew& fresh = *new Crew();  // whose helper does not rest yet
    fresh.use(2);
    std::atomic<int64_t> left{16};
    fresh.share(16, 4, [&](int64_t first, int64_t end) {
      for (const auto last = Clock::now() + std::chrono::milliseconds(100);
           std::this_thread::get_id() == own && left > 4 && Clock::now() < last;) {}
      left -= end - first;
    });
    most = std::max(most, fresh.help_since());
  }
  return most;
}

int main() {
  crew().use(4);
  int elsewhere = 0, forked = 0;
  std::thread other([&] { elsewhere = wrong_pieces(7); });
  const int here = wrong_pieces(1);
  other.join();
  for (int process = 0; process < 20; process++) {
    if (fork() == 0) _exit(wrong_pieces(3) > 0);
    int status = 0;
    wait(&status);
    forked += status;
    wrong_pieces(process);
  }
  std::printf("%d %d %d %d", here, elsewhere, forked, most_help() > 1);
}
"""


def test_every_piece_is_done_once_by_helpers_beside_another_caller_and_after_a_fork(tmp_path):
    for header in (source for source in SOURCES if source.suffix == ".h"):
        shutil.copy(header, tmp_path)
    (tmp_path / "sharing.cpp").write_text(SHARING, encoding="utf-8")
    build = [cxx(), "-std=c++17", "-O2", "-march=native", "-pthread", "sharing.cpp", "-o", "sharing"]
    subprocess.run(build, cwd=tmp_path, check=True)
    told = subprocess.run([tmp_path / "sharing"], capture_output=True, encoding="utf-8", check=True, timeout=300).stdout
    assert told == "0 0 0 0"
