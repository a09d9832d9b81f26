// The scheduler of the emulated threads. See emulation.h.
#include "emulation.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulation {

thread_local Fiber* current = nullptr;
thread_local dim3 block_shape, grid_shape;

namespace {

// Not a power of two: the tops of a block's stacks would all share a few lines of the cache.
constexpr size_t STACK_BYTES = 64 * 1024 + 192;
// Rounds over all fibers in which none did more than spin: then what they wait for will not come.
constexpr unsigned IDLE_ROUNDS_MAX = 64;
thread_local Running* active = nullptr; // whose fibers run
thread_local bool has_moved = false;    // since it was cleared, a fiber did more than spin
// Barriers that the last of their threads has reached, and those of more than a warp.
thread_local uint64_t releases = 0, wide_releases = 0;
std::mutex allowed_lock; // the tests' threads ask at any time
std::map<const void*, size_t> allowed_shared;

[[noreturn]] void fiber_main();
bool is_descending();

#if defined(__x86_64__)
// Saves the callee-saved registers on the stack, stores the stack pointer, takes the other one.
extern "C" void pinion_emulation_switch(void** from, void* to);
asm(R"(
    .text
    .globl pinion_emulation_switch
    .type pinion_emulation_switch,@function
pinion_emulation_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size pinion_emulation_switch,.-pinion_emulation_switch
)");
thread_local void* scheduler_stack = nullptr;
void prepare(Fiber& fiber, unsigned char* stack) {
    auto** top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(stack + STACK_BYTES) & ~uintptr_t{15});
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(&fiber_main);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    fiber.stack_pointer = top;
}
void enter(Fiber& fiber) { pinion_emulation_switch(&scheduler_stack, fiber.stack_pointer); }
void leave(Fiber& fiber) { pinion_emulation_switch(&fiber.stack_pointer, scheduler_stack); }
void hand_over(Fiber& from, Fiber& to) { pinion_emulation_switch(&from.stack_pointer, to.stack_pointer); }
#else
thread_local ucontext_t scheduler_context;
void prepare(Fiber& fiber, unsigned char* stack) {
    auto* context = new ucontext_t;
    getcontext(context);
    context->uc_stack.ss_sp = stack;
    context->uc_stack.ss_size = STACK_BYTES;
    makecontext(context, reinterpret_cast<void (*)()>(&fiber_main), 0);
    fiber.stack_pointer = context;
}
void enter(Fiber& fiber) { swapcontext(&scheduler_context, static_cast<ucontext_t*>(fiber.stack_pointer)); }
void leave(Fiber& fiber) { swapcontext(static_cast<ucontext_t*>(fiber.stack_pointer), &scheduler_context); }
void hand_over(Fiber& from, Fiber& to) {
    swapcontext(static_cast<ucontext_t*>(from.stack_pointer), static_cast<ucontext_t*>(to.stack_pointer));
}
#endif

// The warp that runs: its fibers, whose turn is next, by index, and how many have not had theirs.
thread_local Fiber* warp_fibers = nullptr;
thread_local ptrdiff_t warp_next = 0, warp_step = 1, warp_left = 0;

// Makes the warp's next fiber that does not wait the current one, if there is one.
Fiber* next_of_warp() {
    for (; warp_left > 0; warp_left--) {
        Fiber& fiber = warp_fibers[warp_next];
        warp_next += warp_step;
        if (fiber.done || fiber.waits_for_kernel || (fiber.waits_on && *fiber.waits_on == fiber.waits_past)) continue;
        fiber.waits_on = nullptr;
        warp_left--;
        return current = &fiber;
    }
    return nullptr;
}

// What runs on when `self` cannot: the next of its warp, or, after the last, the scheduler.
void yield(Fiber& self) {
    Fiber* next = next_of_warp();
    if (next)
        hand_over(self, *next);
    else
        leave(self);
}

// Runs a warp's fibers until all of them wait: each pass gives every one that does not wait a turn, and another pass finds
// only what a barrier has released in this one.
void run_warp(Fiber* first, ptrdiff_t count) {
    for (uint64_t before = releases - 1; before != releases;) {
        before = releases;
        warp_fibers = first;
        warp_left = count;
        warp_step = is_descending() ? -1 : 1;
        warp_next = is_descending() ? count - 1 : 0;
        if (Fiber* fiber = next_of_warp()) enter(*fiber);
    }
}

void run_block(Fiber* first, ptrdiff_t count) {
    for (uint64_t before = wide_releases - 1; before != wide_releases;) {
        before = wide_releases;
        for (ptrdiff_t w = 0; w < count; w += 32) {
            ptrdiff_t warp = is_descending() ? (count - 1) / 32 * 32 - w : w;
            run_warp(first + warp, count - warp < 32 ? count - warp : 32);
        }
    }
}

dim3 unpack(unsigned linear, dim3 shape) {
    return {linear % shape.x, linear / shape.x % shape.y, linear / (shape.x * shape.y)};
}

// Memory for fibers' stacks, of which a page is taken when it is used, kept for the next kernel.
class Stacks {
  public:
    explicit Stacks(size_t count) : bytes(count * STACK_BYTES) {
        for (auto spare = spares.begin(); !memory && spare != spares.end(); ++spare) {
            if (spare->second < bytes) continue;
            memory = spare->first;
            bytes = spare->second;
            spares.erase(spare);
            return;
        }
        void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapped == MAP_FAILED) abort();
        memory = static_cast<unsigned char*>(mapped);
    }
    ~Stacks() {
        if (spares.size() < SPARES_MAX)
            spares.emplace_back(memory, bytes);
        else
            munmap(memory, bytes);
    }
    Stacks(const Stacks&) = delete;
    Stacks& operator=(const Stacks&) = delete;
    unsigned char* of(size_t fiber) const { return memory + fiber * STACK_BYTES; }

  private:
    static constexpr size_t SPARES_MAX = 4;
    struct Spares : std::vector<std::pair<unsigned char*, size_t>> {
        ~Spares() {
            for (auto& spare : *this) munmap(spare.first, spare.second);
        }
    };
    static thread_local Spares spares;
    unsigned char* memory = nullptr;
    size_t bytes;
};
thread_local Stacks::Spares Stacks::spares;

void check(const Launch& launch, unsigned blocks, unsigned threads) {
    std::lock_guard<std::mutex> guard(allowed_lock);
    auto allowed = allowed_shared.find(launch.kernel);
    size_t shared_max = allowed == allowed_shared.end() ? SHARED_BYTES_PLAIN : allowed->second;
    if (blocks > 0 && threads > 0 && threads <= 1024 && launch.shared_bytes <= shared_max) return;
    fprintf(stderr, "kernel %s: %u blocks of %u threads and %zu bytes (%zu are allowed) cannot be launched\n", launch.name, blocks,
            threads, launch.shared_bytes, shared_max);
    abort();
}

} // namespace

// A launch, or a part of its blocks: their fibers, and what these share.
class Running {
  public:
    Running(const Launch& launch, unsigned at_once, bool descends)
        : launch(launch), at_once(at_once), descends(descends), threads(launch.block.x * launch.block.y * launch.block.z),
          warps((threads + 31) / 32), shared(at_once * ((launch.shared_bytes + 127) / 128 * 128 + 128)),
          warp_states(size_t{at_once} * warps), blocks(at_once), fibers(size_t{at_once} * threads), stacks(fibers.size()) {}

    // Makes the fibers of the blocks from `first` on.
    void prepare_blocks(unsigned first) {
        // Shared memory starts as no number of any type: what is read before it is written shows, times zero too.
        memset(shared.data(), 0xff, shared.size());
        left = fibers.size();
        for (unsigned b = 0; b < at_once; b++) {
            Block& state = blocks[b];
            state = Block();
            unsigned index = first + b, last = launch.grid.x * launch.grid.y * launch.grid.z - 1;
            state.index = unpack(descends ? last - index : index, launch.grid);
            state.warps = &warp_states[size_t{b} * warps];
            auto base = reinterpret_cast<uintptr_t>(shared.data() + b * (shared.size() / at_once));
            state.shared = reinterpret_cast<unsigned char*>((base + 127) & ~uintptr_t{127});
            state.shared_bytes = launch.shared_bytes;
            state.threads = threads;
            for (unsigned w = 0; w < warps; w++) state.warps[w].barrier = Barrier();
            for (unsigned t = 0; t < threads; t++) {
                size_t place = size_t{b} * threads + t;
                Fiber& fiber = fibers[place];
                fiber = Fiber();
                fiber.linear = t;
                fiber.thread_index = unpack(t, launch.block);
                fiber.block = &state;
                prepare(fiber, stacks.of(place));
            }
        }
    }

    // Runs the fibers until all are done or wait for the kernel ahead: each warp as far as it can go alone, then each block. So
    // threads are as far apart as barriers allow.
    void go_to_wait() {
        activate();
        while (go_round()) {}
        deactivate();
    }

    // Runs them to their end. A round without progress is a barrier that some threads never reach.
    void go_on() {
        previous_is_done = true;
        for (Fiber& fiber : fibers) fiber.waits_for_kernel = false;
        activate();
        for (unsigned idle_rounds = 0; left > 0;) {
            idle_rounds = go_round() ? 0 : idle_rounds + 1;
            if (idle_rounds <= IDLE_ROUNDS_MAX) continue;
            fprintf(stderr, "kernel %s: %zu threads wait at a barrier that the others do not reach\n", launch.name, left);
            abort();
        }
        deactivate();
        if (launch.kind == Kind::DEPENDENT && !has_waited) {
            fprintf(stderr, "kernel %s ended without having waited for the one before it\n", launch.name);
            abort();
        }
    }

    void wait_for_previous() {
        has_waited = true;
        if (previous_is_done) return;
        current->waits_for_kernel = has_moved = true;
        yield(*current);
    }
    void grid_barrier() { wait(grid_wide, unsigned(fibers.size())); }
    bool is_descending() const { return descends; }
    // Runs the current fiber to its end.
    void call() {
        launch.body();
        current->done = true;
        left--;
    }

  private:
    // Of several blocks the first in memory has the last index in every other launch.
    bool go_round() {
        has_moved = false;
        for (size_t first = 0; first < fibers.size(); first += threads) run_block(&fibers[first], threads);
        return has_moved;
    }
    void activate() {
        active = this;
        block_shape = launch.block;
        grid_shape = launch.grid;
    }
    static void deactivate() {
        active = nullptr;
        current = nullptr;
    }

    Launch launch;
    unsigned at_once;
    bool descends;
    unsigned threads, warps;
    std::vector<unsigned char> shared;
    std::vector<Warp> warp_states;
    std::vector<Block> blocks;
    std::vector<Fiber> fibers;
    Stacks stacks;
    Barrier grid_wide;
    size_t left = 0;
    bool previous_is_done = false, has_waited = false;
};

namespace {

bool is_descending() { return active->is_descending(); }

void fiber_main() {
    active->call();
    has_moved = true;
    yield(*current);
    abort();
}

// The other way round than the last.
bool next_descends() {
    static thread_local bool descends = false;
    return descends = !descends;
}

} // namespace

void grid_barrier() { active->grid_barrier(); }
void wait_for_previous() { active->wait_for_previous(); }

void wait(Barrier& barrier, unsigned expected) {
    if (++barrier.arrived == expected) {
        barrier.arrived = 0;
        barrier.generation++;
        releases++;
        if (expected > 32) wide_releases++;
        return;
    }
    Fiber& self = *current;
    self.waits_on = &barrier.generation;
    self.waits_past = barrier.generation;
    has_moved = true;
    yield(self);
}

void copy_async(void* to, const void* from, size_t bytes) {
    if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % bytes != 0) {
        fprintf(stderr, "an asynchronous copy of %zu bytes is not aligned\n", bytes);
        abort();
    }
    if (is_descending())
        current->copies.push_back({to, from, bytes, current->group});
    else
        memcpy(to, from, bytes);
}

void commit_copies() { current->group++; }

void wait_copies(unsigned pending) {
    auto& copies = current->copies;
    size_t done = 0;
    for (; done < copies.size() && copies[done].group + pending < current->group; done++)
        memcpy(copies[done].to, copies[done].from, copies[done].bytes);
    copies.erase(copies.begin(), copies.begin() + done);
}

void check_matrix_row(const void* row, size_t bytes) {
    const Block& block = *current->block;
    auto begin = reinterpret_cast<uintptr_t>(block.shared), at = reinterpret_cast<uintptr_t>(row);
    if (at % bytes != 0 || at < begin || at + bytes > begin + block.shared_bytes) {
        fprintf(stderr, "a row of a matrix is not aligned, or not in shared memory\n");
        abort();
    }
}

void allow_shared(const void* kernel, size_t bytes) {
    std::lock_guard<std::mutex> guard(allowed_lock);
    allowed_shared[kernel] = bytes;
}

uint64_t clock() {
    static std::atomic<uint64_t> calls{0};
    return ++calls;
}

void pause() {
    yield(*current);
}

std::shared_ptr<Running> begin(const Launch& launch) {
    unsigned block_count = launch.grid.x * launch.grid.y * launch.grid.z;
    check(launch, block_count, launch.block.x * launch.block.y * launch.block.z);
    auto running = std::make_shared<Running>(launch, block_count, next_descends());
    running->prepare_blocks(0);
    if (launch.kind == Kind::DEPENDENT) running->go_to_wait();
    return running;
}

void finish(Running& running) { running.go_on(); }

void run(const Launch& launch) {
    if (launch.kind == Kind::COOPERATIVE) return finish(*begin(launch));
    unsigned block_count = launch.grid.x * launch.grid.y * launch.grid.z;
    check(launch, block_count, launch.block.x * launch.block.y * launch.block.z);
    Running running(launch, 1, next_descends());
    for (unsigned first = 0; first < block_count; first++) {
        running.prepare_blocks(first);
        running.go_on();
    }
}

} // namespace emulation
