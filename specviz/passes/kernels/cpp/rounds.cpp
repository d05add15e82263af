// A run's rounds, one or several in a call: draft, target pass and verdict, and what is left of them for the next round.
//
// A pass streams its weights through the caches, so whatever Python does after it begins with code and data that are far
// away. Here nothing comes between the passes, and Python follows after several rounds at once where these are short.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "given.h"
#include "programs.h"

extern "C" {

struct Fusion;

// Of chains.cpp, judging.cpp and few_rows.cpp, where they are explained.
int64_t few_rows_draft(
    const Program* program, int64_t row_count, const Memory* rows, int64_t* unread, int64_t count, int64_t length,
    bool in_place, const Memory* features, const Fusion* fusion, int64_t levels, const Choice* choice, int64_t* tokens,
    int64_t* parents, float* logits, float* probs, const double* uniforms, int64_t vocab);
int64_t few_rows_draft_at_once(
    const Program* program, int64_t row_count, const Memory* rows, const int64_t* unread, int64_t count, int64_t length,
    const OnePass* one_pass, const Memory* features, int64_t levels, const Choice* choice, int64_t* tokens, int64_t* parents,
    float* logits, float* probs, const double* uniforms, int64_t vocab);
int64_t few_rows_judge(
    const float* logits, int64_t count, int64_t vocab, float temperature, bool as_block, const int64_t* drafted,
    const int64_t* parents, const float* draft_logits, int64_t draft_rows, const float* drawn_from, const double* coins,
    const double* u, float* made, int64_t* told);
void few_rows_move(
    int64_t tensors, float* const* rows, const int64_t* heads, const int64_t* sizes, int64_t room, int64_t start,
    int64_t count, const int64_t* origins);
}

namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::time_point from, Clock::time_point to) { return std::chrono::duration<double>(to - from).count(); }

// What stays the same in all rounds of a run (`_Setup` in rounds.py).
struct Setup {
  const Program *target, *drafter;  // none: drafts are given
  const Fusion* fusion;             // of a head that drafts
  const OnePass* one_pass;          // by which it makes all of a draft's rows; none: a pass for each level
  int64_t longest, shortest;        // n-grams whose followers are copied, where no model drafts; 0: nothing is copied
  int64_t skipped;                  // of the text's first tokens the drafter reads none: a head has no state for the first
  bool shares;                      // keys and values with the target: the drafter has read what that has
  int64_t vocab, coins, widest;     // coins: of each kind in a round. widest: the most tokens of a pass
  float temperature;
  bool as_block;
  int64_t state_count;    // the target's hidden states that the drafter reads,
  const int64_t* states;  // by their places among what a pass returns
  int64_t end_count;      // tokens that end a text
  const int64_t* ends;
};

// One round as it is asked for. A draft that is given has `count` tokens; see `few_rows_judge`.
struct Order {
  int64_t levels;          // to be drafted
  const Choice* choice;    // by which they are
  const double* uniforms;  // to draw the draft, for each decision, for the next token
  int64_t count;
  const int64_t *tokens, *parents;
  const float *found, *drawn_from;
  int64_t found_rows;
  char* states;  // where the target's states go that the drafter reads, if somebody else hands them over
};

// What Python reads of a round. Times in seconds. told: the places of the accepted tokens, with room for all, each row's
// likeliest token, the parents, the accepted tokens and the next one.
struct Made {
  void* round;
  int64_t count, accepted, read, draft_rows;
  double drafting, verifying, all;
  const int64_t *tokens, *told;
  const float *draft_logits, *draft_probs, *logits, *numbers;
};

// All that a round leaves for its record.
struct Round {
  std::vector<int64_t> tokens, parents, told;
  std::unique_ptr<float[]> draft_logits, draft_probs, numbers;
  Tensors passed;  // what the target's pass returned
  int64_t draft_rows = 0;
};

// How far rounds may go in one call: how many, and how long the text may become, both at most. None begins that would probably
// end after so many seconds.
struct Ahead {
  int64_t rounds, length;
  double seconds;
};

std::unique_ptr<float[]> room_for(int64_t count) { return std::unique_ptr<float[]>(new float[count]); }

// Keys and values of one model, and how many of the text's tokens it has read.
struct Reader {
  std::vector<Memory> rows;
  int64_t read = 0;

  int64_t room() const { return rows[0].sizes[2]; }

  // Keeps the draft tokens of a path of which it has read those before `end`, after `start` others.
  void keep(int64_t start, const int64_t* path, int64_t accepted, int64_t end) {
    std::vector<int64_t> origins, heads, sizes;
    std::vector<float*> places;
    bool moved = false;
    for (int64_t i = 0; i < accepted && path[i] < end; i++) {
      moved |= path[i] != i;
      origins.push_back(start + path[i]);
    }
    read = start + origins.size();
    if (!moved) return;
    for (const Memory& each : rows) {
      places.push_back(static_cast<float*>(each.data));
      heads.push_back(each.sizes[1]);
      sizes.push_back(each.sizes[3]);
    }
    few_rows_move(rows.size(), places.data(), heads.data(), sizes.data(), room(), start, origins.size(), origins.data());
  }
};

// A text, and both models' place in it.
struct Run {
  Setup setup;
  std::vector<int64_t> text;
  Reader target, drafter;
  std::vector<char> states;  // the target's, which the drafter has yet to read
  int64_t state_width = 0;
  int32_t state_dtype = 0;

  // How many tokens a draft's one pass reads after the text.
  int64_t masks() const { return setup.one_pass && setup.one_pass->reads_text ? 1 + setup.one_pass->count : 0; }

  // Copies what followed the text's last tokens, as PromptLookup in specviz/drafters/copying.py explains it.
  void copy(int64_t levels, Round& round) const {
    const int64_t length = text.size();
    for (int64_t n = std::min(setup.longest, length); n >= setup.shortest; n--) {
      int64_t start = length;  // nothing follows the text's end itself
      for (int64_t place = length - 1; place >= n; place--) {
        if (!std::equal(text.end() - n, text.end(), text.begin() + place - n)) continue;
        start = place;
        if (start + levels <= length) break;  // it offers a whole draft
      }
      if (start == length) continue;
      round.tokens.assign(text.begin() + start, text.begin() + std::min(start + levels, length));
      for (size_t i = 0; i < round.tokens.size(); i++) round.parents.push_back(i - 1);
      return;
    }
  }

  // Drafts after the text; returns how many of the draft tokens the drafter has read.
  int64_t draft(const Order& order, Round& round) {
    const int64_t most = order.levels * order.choice->branches, vocab = setup.vocab;
    round.tokens.resize(most), round.parents.resize(most);
    round.draft_logits = room_for(most * vocab);
    if (order.choice->temperature) round.draft_probs = room_for(most * vocab);
    const OnePass* one_pass = setup.one_pass;
    const bool reads_text = !one_pass || one_pass->reads_text;
    const int64_t widest = setup.widest - masks(), row_bytes = state_width * aoti_torch_dtype_element_size(state_dtype);
    int64_t unread = reads_text ? text.size() - setup.skipped - drafter.read : !states.empty(), made = 0;
    while (unread > 0) {
      // Of what is too much for one pass, the first part is read with a draft that nobody wants.
      const int64_t count = std::min(unread, widest), levels = count < unread ? 1 : order.levels;
      const Memory features = {states.data() + states.size() - unread * row_bytes, state_dtype, 2, {count, state_width}};
      int64_t* tokens = &text[text.size() - unread];
      const auto by = [&](auto function, auto... how) {
        return function(
            setup.drafter, drafter.rows.size(), drafter.rows.data(), tokens, count, drafter.read, how..., levels, order.choice,
            round.tokens.data(), round.parents.data(), round.draft_logits.get(), round.draft_probs.get(), order.uniforms, vocab);
      };
      made = one_pass ? by(few_rows_draft_at_once, one_pass, &features)
                      : by(few_rows_draft, false, setup.state_count ? &features : nullptr, setup.fusion);
      if (made < 0) throw Failed();
      drafter.read += reads_text ? count : 0, unread -= count;
    }
    states.clear();
    round.tokens.resize(made), round.parents.resize(made);
    int64_t fed = 0;  // all but the last level
    for (int64_t i = 0; i < made; i++)
      if (round.parents[i] >= fed) fed = i;
    std::vector<bool> continued(made + 1);
    for (int64_t parent : round.parents) continued[parent + 1] = true;
    round.draft_rows = std::count(continued.begin(), continued.end(), true);
    return fed;
  }

  // The target's pass over what is unread and the draft; returns how much was unread.
  int64_t pass(Round& round) {
    const int64_t length = text.size(), unread = length - target.read;
    const int64_t count = unread + round.tokens.size(), room = target.room();
    std::vector<int64_t> read(text.end() - unread, text.end()), positions(count);
    std::vector<uint8_t> visible(count * room);
    read.insert(read.end(), round.tokens.begin(), round.tokens.end());
    for (int64_t i = 0; i < count; i++) {
      uint8_t* sees = &visible[i * room];
      const int64_t parent = i < unread ? -1 : round.parents[i - unread];
      positions[i] = i < unread ? target.read + i : parent < 0 ? length : positions[unread + parent] + 1;
      std::fill_n(sees, i < unread ? target.read + i + 1 : length, 1);
      if (i < unread) continue;
      if (parent >= 0) std::copy_n(&visible[(unread + parent) * room + length], i - unread, sees + length);
      sees[length + i - unread] = 1;
    }
    const Text held(target.rows.size(), target.rows.data());
    Tensors passed = setup.target->pass(held, read.data(), count, target.read, positions, visible);
    round.passed.swap(passed);
    if (Rows(round.passed[0]).width != setup.vocab) throw Failed();
    return unread;
  }

  // The verdict; returns how many draft tokens are accepted, or what few_rows_judge returns where logits are not numbers.
  int64_t judge(const Order& order, Round& round, const float* logits) {
    const int64_t count = round.tokens.size();
    const float* drawn_from = order.levels ? round.draft_probs.get() : order.drawn_from;
    const float* found = !order.levels ? order.found : drawn_from ? drawn_from : round.draft_logits.get();
    const int64_t found_rows = !order.levels ? order.found_rows : drawn_from ? count : round.draft_rows;
    const double* coins = order.uniforms + setup.coins;
    round.told.resize(2 * count + 2);
    if (setup.temperature) round.numbers = room_for((count + 2) * setup.vocab + 4 * count);
    const int64_t accepted = few_rows_judge(
        logits, count, setup.vocab, setup.temperature, setup.as_block, round.tokens.data(), round.parents.data(), found,
        found_rows, drawn_from, coins, coins + setup.coins, round.numbers.get(), round.told.data());
    if (accepted < 0) return accepted;
    const int64_t next = round.told.back();
    round.told.pop_back();
    round.told.insert(round.told.end(), round.parents.begin(), round.parents.end());
    for (int64_t i = 0; i < accepted; i++) round.told.push_back(round.tokens[round.told[i]]);
    round.told.push_back(next);
    return accepted;
  }

  // What the drafter reads of the target's states of the tokens that stay, side by side: to `to`, or to be read by a drafter
  // that needs nobody else.
  void take_states(const Round& round, int64_t unread, int64_t accepted, char* to) {
    std::vector<Rows> found;
    for (int64_t i = 0; i < setup.state_count; i++) found.emplace_back(round.passed[setup.states[i]]);
    int64_t bytes = 0;
    state_width = 0, state_dtype = found[0].dtype;
    for (const Rows& from : found) state_width += from.width, bytes += from.bytes();
    if (!to) {
      states.resize(states.size() + (unread + accepted) * bytes);
      to = states.data() + states.size() - (unread + accepted) * bytes;
    }
    for (int64_t i = 0; i < unread + accepted; i++)
      for (const Rows& from : found)
        to = std::copy_n(from.data + (i < unread ? i : unread + round.told[i - unread]) * from.bytes(), from.bytes(), to);
  }

  // True if another round like the last one can follow without Python: the text goes on, and leaves room for as deep a draft.
  bool may_go_on(const Order& order, const Made& last, int64_t length) const {
    const int64_t *written = last.told + 3 * last.count + 1, *end = setup.ends + setup.end_count;
    if (std::find_first_of(written, written + last.accepted + 1, setup.ends, end) != written + last.accepted + 1) return false;
    const int64_t branches = order.choice ? order.choice->branches : 1, drafted = order.levels * branches, now = text.size();
    const int64_t read = now + (setup.one_pass ? masks() : drafted - branches);
    const bool drafter_has_room = !order.levels || drafter.rows.empty() || read <= drafter.room();
    return now + order.levels < length && now + drafted <= target.room() && drafter_has_room;
  }

  // See few_rows_rounds, whose status this returns.
  int64_t make(const Order& order, Made& made) {
    auto round = std::make_unique<Round>();
    const auto began = Clock::now();
    int64_t fed = 0;
    if (order.levels && setup.longest) {
      copy(order.levels, *round);
    } else if (order.levels) {
      fed = draft(order, *round);
    } else {
      round->tokens.assign(order.tokens, order.tokens + order.count);
      round->parents.assign(order.parents, order.parents + order.count);
    }
    const auto drafted = Clock::now();
    const int64_t unread = pass(*round), count = round->tokens.size(), length = text.size();
    const auto verified = Clock::now();
    const float* logits = reinterpret_cast<const float*>(Rows(round->passed[0]).data) + (unread - 1) * setup.vocab;
    const int64_t accepted = judge(order, *round, logits), *path = round->told.data();
    if (accepted < 0) return accepted - 1;
    target.keep(length, path, accepted, count);
    if (setup.shares)
      drafter.read = target.read;  // what the draft left there is the target's by now
    else if (order.choice && count && !setup.skipped)
      drafter.keep(length, path, accepted, fed);
    if (setup.state_count) take_states(*round, unread, accepted, order.states);
    text.insert(text.end(), round->told.end() - accepted - 1, round->told.end());
    made = {round.get(),
            count,
            accepted,
            drafter.read,
            round->draft_rows,
            seconds(began, drafted),
            seconds(drafted, verified),
            seconds(began, Clock::now()),
            round->tokens.data(),
            path,
            round->draft_logits.get(),
            round->draft_probs.get(),
            logits,
            round->numbers.get()};
    round.release();
    return 0;
  }
};

}  // namespace

extern "C" {

// A run after a text that the target has read but for its last token, and the drafter as far as it says. states: the target's
// that the drafter has yet to read, [rows][width].
Run* few_rows_begin(
    const Setup* setup, int64_t length, const int64_t* text, int64_t drafter_read, const Memory* states) {
  Run* run = new Run{*setup, {text, text + length}};
  run->target.read = length - 1, run->drafter.read = setup->shares ? run->target.read : drafter_read;
  if (!states) return run;
  const char* from = static_cast<const char*>(states->data);
  run->state_dtype = states->dtype, run->state_width = states->sizes[1];
  run->states.assign(from, from + states->sizes[0] * states->sizes[1] * aoti_torch_dtype_element_size(states->dtype));
  return run;
}

void few_rows_end(Run* run) { delete run; }

// Where keys and values lie from now on: of the target, or of the drafter.
void few_rows_rooms(Run* run, bool of_drafter, int64_t count, const Memory* rows) {
  (of_drafter ? run->drafter : run->target).rows.assign(rows, rows + count);
}

// Rounds, to `made`: one as ordered, then others like it, each with the coins that follow, as far `ahead` as they may go.
// Returns how many were made. status: 0; or of the round that was not, -1 if a pass failed, -2 if the target's logits are not
// numbers, -3 if the drafter's are not, -4 if there was no memory for all that it leaves.
int64_t few_rows_rounds(Run* run, const Order* first, const Ahead* ahead, Made* made, int64_t* status) {
  Order order = *first;
  double spent = 0;
  for (int64_t count = 0;; order.uniforms += 2 * run->setup.coins + 1) {
    try {
      *status = run->make(order, made[count]);
    } catch (const Failed&) {
      *status = -1;
    } catch (const std::bad_alloc&) {
      *status = -4;
    }
    if (*status) return count;
    const Made& last = made[count++];
    spent += last.all;
    if (count == ahead->rounds || spent + last.all > ahead->seconds) return count;
    if (!run->may_go_on(order, last, ahead->length)) return count;
  }
}

void few_rows_forget(void* round) { delete static_cast<Round*>(round); }
}
