// Work that several threads share, on cores that others may want.
//
// Each thread takes piece after piece from the front of a part of its own, as memory is read best; who has none left takes
// half of what another has not begun. So a helper that comes late, or not at all, costs nothing, and one whose core is taken
// away the wait for its one piece. That is noticed: then helpers rest for so long that what they cost, less what they gain,
// is a small share of the time. A core that another program of this system takes is left to it at once. A hypervisor, too,
// takes cores for a moment from machines that share a processor, and rest would not prevent that: it counts by its cost alone.
// Between two jobs, while memory would be idle, a helper reads ahead.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sched.h>
#include <sys/resource.h>
#endif

#include "lanes.h"

namespace {

class Crew {
 public:
  static constexpr int MOST = 64;  // threads

  // How many threads work at most, the calling one included.
  void use(int threads) { most = std::clamp(threads, 1, MOST); }

  int threads() const { return most; }

  // Of the pieces since it was last asked, the share that helpers did.
  double help_since() {
    const std::lock_guard<std::mutex> served(serving);
    const double share = all_pieces > 0 ? static_cast<double>(all_helped) / all_pieces : 0;
    all_pieces = all_helped = 0;
    return share;
  }

  // work(first, end), of at most `piece`, until all of `count` is done, by any thread and in any order. Who calls it while
  // another is served works alone. follows: where in memory lies what will probably be read next.
  template <class Work>
  void share(int64_t count, int64_t piece, const Work& work, const void* follows = nullptr) {
    std::unique_lock<std::mutex> served(serving, std::defer_lock);
    const int64_t others = (count + piece - 1) / piece - 1;
    if (most == 1 || others <= 0 || !served.try_lock()) return work(0, count);
    const int helpers = hire(static_cast<int>(std::min<int64_t>(helping(), others)));
    if (helpers == 0) {
      all_pieces += others + 1;
      return work(0, count);
    }
    grain = piece;
    run = [](const void* it, int64_t first, int64_t end) { (*static_cast<const Work*>(it))(first, end); };
    task = &work;
    ahead = static_cast<const char*>(follows);
    serve(count, helpers);
  }

 private:
  using Clock = std::chrono::steady_clock;

  // How long a helper looks out for more before it sleeps: longer than what lies between two passes of a round, or else
  // waking it makes the round 3 to 10 % longer. For so long after somebody wanted a core, only longer than what lies
  // between two layers.
  static constexpr auto LONG_LOOKOUT = std::chrono::microseconds(700), LOOKOUT = std::chrono::microseconds(100);
  static constexpr auto CALM = std::chrono::milliseconds(5);
  // What is noticed: a wait, or a piece of the calling thread's own, of this and of so many times a piece.
  static constexpr double NOTICED = 100e-6, PIECES = 6;
  // For how long a core that is wanted is left at least; and for how many times what help cost.
  static constexpr double REST = 4e-3, RESTS = 20;
  // The most that help is remembered to have gained: where another program took a core, and where none did.
  static constexpr double CREDIT = REST, LONG_CREDIT = 40e-3;
  // What the first helper reads ahead at most, into its own cache, while the calling thread does what lies between two jobs: the
  // next job's first part will be its own. And how many lines of memory it asks for at a time.
  static constexpr int64_t READ_AHEAD = 512 << 10, LINES = 32, LINE_BYTES = 64;
  // How old a count of lost cores may be when a job begins.
  static constexpr auto FRESH = std::chrono::milliseconds(1);

  // A stretch of the work, in one word.
  struct Stretch {
    uint64_t word;
    Stretch(uint64_t word) : word(word) {}
    Stretch(int64_t first, int64_t end) : word(static_cast<uint64_t>(first) << 32 | static_cast<uint64_t>(end)) {}
    int64_t first() const { return word >> 32; }
    int64_t end() const { return word & 0xffffffff; }
  };

  // What is not begun of a thread's part.
  struct alignas(64) Part {
    std::atomic<uint64_t> left{0};
  };

  // The job at hand, in one word: its number, whether it is open, and how many helpers have come.
  static constexpr uint64_t OPEN = 1 << 16, COME = OPEN - 1, NUMBER = OPEN << 1;

  std::mutex serving, bed;
  std::condition_variable alarm;
  std::atomic<int> most{1}, asleep{0};
  alignas(64) std::atomic<uint64_t> job{0};
  std::atomic<int> served_on{-1};    // the calling thread's core
  std::atomic<bool> crowded{false};  // whether a helper found itself there
  std::atomic<bool> displaced{false};  // whether another program took a helper's core while it worked
  std::atomic<Clock::time_point> wanted{Clock::now()};  // when somebody else last wanted a core, as far as was noticed
  std::atomic<int> threads_at_it{0};
  std::atomic<int> gone{0};        // helpers that have come, and are through
  std::atomic<int64_t> helped{0};  // pieces that they did
  Part parts[MOST];
  int64_t grain = 1;
  void (*run)(const void*, int64_t, int64_t) = nullptr;
  const void* task = nullptr;
  const char* ahead = nullptr;  // what follows, if anything is known to

  // Of the thread that is served.
  int hired = 0, resting = 0;  // helpers
  Clock::time_point until;     // when one more comes back
  double balance = 0;          // seconds that help gained, less those that it cost
  int64_t all_pieces = 0, all_helped = 0;

  static double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

  static Clock::duration duration(double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  static void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  // Where the calling thread runs, if the system tells; a helper that is woken there takes the core from it.
  static int core() {
#if defined(__linux__)
    return sched_getcpu();
#else
    return -1;
#endif
  }

  // How often another program of this system has taken a thread's core. Each thread counts its own.
  class Displacements {
   public:
    // Whether that happened since the count was last read; true where the system does not tell.
    bool more() {
      const long last = known;
      read(Clock::now());
      return known != last || known < 0;
    }

    void keep_fresh(Clock::time_point now) {
      if (now - when > FRESH) read(now);
    }

   private:
    long known = -1;
    Clock::time_point when{};

    void read(Clock::time_point now) {
      when = now;
#if defined(__linux__)
      rusage usage;
      if (getrusage(RUSAGE_THREAD, &usage) == 0) known = usage.ru_nivcsw;
#endif
    }
  };

  static Displacements& displacements() {
    static thread_local Displacements own;
    return own;
  }

  bool in_the_way() const { return served_on >= 0 && core() == served_on; }

  int helping() {
    if (crowded) {
      crowded = false;
      rest(REST);
    } else if (resting && Clock::now() >= until) {
      resting--;
      until = Clock::now() + duration(REST);
      balance = 0;
    }
    return std::max(0, most - 1 - resting);
  }

  // How long helpers look out now.
  Clock::duration lookout(Clock::time_point now) const { return now - wanted.load() < CALM ? LOOKOUT : LONG_LOOKOUT; }

  // At least so many helpers, or as many as the system lets a process have.
  int hire(int helpers) {
    try {
      for (; hired < helpers; hired++) std::thread(&Crew::help, this).detach();
    } catch (const std::system_error&) {
      most = hired + 1;
    }
    return std::min(helpers, hired);
  }

  void wake(int helpers) {
    if (asleep == 0) return;
    // Who holds the lock is about to sleep, and wakes for the next job: the core may be taken away meanwhile.
    if (!bed.try_lock()) return;
    bed.unlock();
    for (int i = 0; i < helpers; i++) alarm.notify_one();
  }

  void serve(int64_t count, int helpers) {
    const int threads = helpers + 1;
    for (int i = 0; i < threads; i++) parts[i].left = Stretch(count * i / threads, count * (i + 1) / threads).word;
    helped = 0, gone = 0, threads_at_it = threads;
    served_on = core();
    job = (job / NUMBER + 1) * NUMBER | OPEN;
    wake(helpers);
    const Clock::time_point start = Clock::now();
    displacements().keep_fresh(start);
    Clock::time_point last = start;
    Clock::duration slowest{};
    int64_t done = 0;
    for (Stretch piece(0, 0); take(helpers, piece); done++) {
      run(task, piece.first(), piece.end());
      const Clock::time_point now = Clock::now();
      slowest = std::max(slowest, now - last);
      last = now;
    }
    const int come = job.fetch_and(~OPEN) & COME;
    // A helper that waits for this core gets it.
    while (gone.load(std::memory_order_acquire) < come) Clock::now() - last > LOOKOUT ? std::this_thread::yield() : pause();
    all_helped += helped, all_pieces += done + helped;  // those that were halved are more than there were
    if (done) judge(seconds(last - start) / done, seconds(slowest), seconds(Clock::now() - last));
  }

  // Seconds that the calling thread took for a piece, for its slowest piece, and waited for others in the end.
  void judge(double piece, double slowest, double wait) {
    const double noticed = std::max(NOTICED, PIECES * piece);
    const auto late = [&](double seconds) { return seconds > noticed ? seconds - piece : 0; };
    balance = std::min(balance + helped * piece, LONG_CREDIT);
    if (late(slowest) + late(wait) == 0) return;
    const bool others = displacements().more() | displaced.exchange(false);
    // If nobody took its own core, the calling thread would have lost it without helpers too.
    const double lost = late(wait) + (others ? late(slowest) : 0);
    if (lost == 0) return;
    balance = (others ? std::min(balance, CREDIT) : balance) - lost;
    if (others || balance < 0) rest((others ? REST : 0) + RESTS * std::max(0.0, -balance));
  }

  // Does with a helper less for a while.
  void rest(double seconds) {
    wanted = Clock::now();
    resting = std::min(resting + 1, most - 1);
    until = Clock::now() + duration(seconds);
  }

  // The next piece of a thread: of its own part, else of another's, of which it takes the latter half.
  bool take(int me, Stretch& piece) {
    const int threads = threads_at_it.load(std::memory_order_relaxed);
    for (int i = 0; i < threads; i++) {
      std::atomic<uint64_t>& part = parts[(me + i) % threads].left;
      for (uint64_t word = part; Stretch(word).first() < Stretch(word).end();) {
        const Stretch left = word;
        const int64_t from = i == 0 ? left.first() : left.first() + (left.end() - left.first()) / 2;
        piece = Stretch(from, std::min(from + grain, left.end()));
        const Stretch rest(piece.end(), left.end());
        if (!part.compare_exchange_weak(word, i == 0 ? rest.word : Stretch(left.first(), from).word)) continue;
        if (i > 0) parts[me].left = rest.word;
        return true;
      }
    }
    return false;
  }

  // A helper's life.
  void help() {
    uint64_t known = 0;  // the last job's number
    Clock::time_point since = Clock::now(), looked = since;
    const char *next = nullptr, *enough = nullptr;  // of what is read ahead
    for (;;) {
      uint64_t at = job.load(std::memory_order_acquire);
      const int place = static_cast<int>(at & COME) + 1;
      const Clock::time_point now = Clock::now();
      if (seconds(now - looked) > NOTICED && displacements().more()) wanted = now;
      looked = now;
      const bool late = now - since >= lookout(now);
      if (!late && in_the_way()) {
        crowded = true;
        sleep(at);
      } else if ((at & OPEN) && at / NUMBER != known && place < threads_at_it) {
        if (!job.compare_exchange_weak(at, at + 1)) continue;
        known = at / NUMBER;
        displacements().keep_fresh(now);
        if (ahead) next = place == 1 ? ahead : nullptr, enough = next ? next + READ_AHEAD : nullptr;
        for (Stretch piece(0, 0); take(place - 1, piece); helped++) run(task, piece.first(), piece.end());
        if (seconds(Clock::now() - now) > NOTICED && displacements().more()) displaced = true;
        gone.fetch_add(1, std::memory_order_release);
      } else if (late) {
        sleep(at);
      } else if (next < enough) {
        for (int64_t line = 0; line < LINES; line++, next += LINE_BYTES) __builtin_prefetch(next, 0, 2);
        continue;
      } else {
        pause();
        continue;
      }
      since = looked = Clock::now();
    }
  }

  // Until there is another job than the one seen.
  void sleep(uint64_t seen) {
    std::unique_lock<std::mutex> lock(bed);
    asleep++;
    if (seen / NUMBER == job / NUMBER) alarm.wait(lock);
    asleep--;
  }
};

// For all of the process, and as long as it lives: helpers look at it to the end. A forked process has none of its parent's
// helpers, and hires its own.
inline Crew& crew() {
  static Crew* all = new Crew();
  static const int forking = pthread_atfork(nullptr, nullptr, [] {
    const int threads = all->threads();
    all = new Crew();
    all->use(threads);
  });
  static_cast<void>(forking);
  return *all;
}

// write(i, first, end) for the panels of each of `count` layers, by all threads.
template <class Layer, class Write>
void share_panels(const Layer* layers, int count, const Write& write) {
  const auto panels = [&](int i) { return (layers[i].outputs + PANEL - 1) / PANEL; };
  int64_t total = 0;
  for (int i = 0; i < count; i++) total += panels(i);
  crew().share(total, GROUP, [&](int64_t first, int64_t end) {
    for (int i = 0; i < count && end > 0; first -= panels(i), end -= panels(i), i++)
      if (first < panels(i)) write(i, std::max<int64_t>(first, 0), std::min(end, panels(i)));
  }, layers[count - 1].panel(panels(count - 1)));
}

}  // namespace
