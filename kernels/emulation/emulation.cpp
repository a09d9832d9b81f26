// The scheduler of the emulated threads. See emulation.h.
#include "emulation.h"

#include <stdio.h>
#include <stdlib.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulation {

Fiber* current = nullptr;
dim3 block_shape, grid_shape;

namespace {

constexpr size_t STACK_BYTES = 64 * 1024;
// Rounds over all fibers in which none did more than spin: then what they wait for will not come.
constexpr unsigned IDLE_ROUNDS_MAX = 64;
bool descending = false;
const std::function<void()>* kernel_body = nullptr;
Barrier* grid_wide = nullptr;
unsigned grid_threads = 0;
std::mutex allowed_lock; // the tests' threads ask at any time
std::map<const void*, size_t> allowed_shared;

[[noreturn]] void fiber_main();

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
void* scheduler_stack = nullptr;
void prepare(Fiber& fiber, unsigned char* stack) {
    auto** top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(stack + STACK_BYTES) & ~uintptr_t{15});
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(&fiber_main);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    fiber.stack_pointer = top;
}
void enter(Fiber& fiber) { pinion_emulation_switch(&scheduler_stack, fiber.stack_pointer); }
void leave(Fiber& fiber) { pinion_emulation_switch(&fiber.stack_pointer, scheduler_stack); }
#else
ucontext_t scheduler_context;
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
#endif

void fiber_main() {
    (*kernel_body)();
    current->done = true;
    leave(*current);
    abort();
}

// Runs fibers `first` and on until none of them can go on; gives whether any did.
bool run_warp(std::vector<Fiber>& fibers, size_t first, size_t count, size_t& left) {
    bool moved_at_all = false;
    for (bool moved = true; moved; moved_at_all |= moved) {
        moved = false;
        for (size_t i = 0; i < count; i++) {
            Fiber& fiber = fibers[first + (descending ? count - 1 - i : i)];
            if (fiber.done || (fiber.waits_on && *fiber.waits_on == fiber.waits_past)) continue;
            fiber.waits_on = nullptr;
            fiber.spins = false;
            current = &fiber;
            enter(fiber);
            moved = moved || !fiber.spins;
            if (fiber.done) left--;
        }
    }
    return moved_at_all;
}

bool run_block(std::vector<Fiber>& fibers, size_t first, size_t count, size_t& left) {
    bool moved_at_all = false;
    for (bool moved = true; moved; moved_at_all |= moved) {
        moved = false;
        for (size_t w = 0; w < count; w += 32) {
            size_t warp = descending ? (count - 1) / 32 * 32 - w : w;
            moved |= run_warp(fibers, first + warp, count - warp < 32 ? count - warp : 32, left);
        }
    }
    return moved_at_all;
}

// Runs the fibers until all are done: each warp as far as it can go alone, then each block. So threads are as far apart as
// barriers allow. Rounds in which nobody moves on are a barrier that not everybody reaches.
void schedule(const char* name, std::vector<Fiber>& fibers, size_t threads) {
    size_t left = fibers.size();
    unsigned idle_rounds = 0;
    while (left > 0) {
        bool moved = false;
        // Of several blocks the first in memory has the last index in every other launch.
        for (size_t first = 0; first < fibers.size(); first += threads) moved |= run_block(fibers, first, threads, left);
        idle_rounds = moved ? 0 : idle_rounds + 1;
        if (idle_rounds > IDLE_ROUNDS_MAX) {
            fprintf(stderr, "kernel %s: %zu threads wait at a barrier that the others do not reach\n", name, left);
            abort();
        }
    }
    current = nullptr;
}

dim3 unpack(unsigned linear, dim3 shape) {
    return {linear % shape.x, linear / shape.x % shape.y, linear / (shape.x * shape.y)};
}

std::vector<unsigned char> stacks;

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

void wait(Barrier& barrier, unsigned expected) {
    if (++barrier.arrived == expected) {
        barrier.arrived = 0;
        barrier.generation++;
        return;
    }
    Fiber& self = *current;
    self.waits_on = &barrier.generation;
    self.waits_past = barrier.generation;
    leave(self);
}

void grid_barrier() { wait(*grid_wide, grid_threads); }

void copy_async(void* to, const void* from, size_t bytes) {
    if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % bytes != 0) {
        fprintf(stderr, "an asynchronous copy of %zu bytes is not aligned\n", bytes);
        abort();
    }
    if (descending)
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
    static uint64_t calls = 0;
    return ++calls;
}

void pause() {
    current->spins = true;
    leave(*current);
}

void run(const Launch& launch, const std::function<void()>& body) {
    dim3 grid = launch.grid, block = launch.block;
    unsigned block_count = grid.x * grid.y * grid.z, threads = block.x * block.y * block.z;
    unsigned at_once = launch.cooperative ? block_count : 1;
    unsigned warps = (threads + 31) / 32;
    check(launch, block_count, threads);
    if (stacks.size() < size_t{at_once} * threads * STACK_BYTES) stacks.resize(size_t{at_once} * threads * STACK_BYTES);
    descending = !descending;
    kernel_body = &body;
    block_shape = block;
    grid_shape = grid;
    Barrier grid_state;
    grid_wide = &grid_state;
    grid_threads = block_count * threads;
    // Shared memory starts as no number of any type: what is read before it is written shows, times zero too.
    std::vector<unsigned char> shared(at_once * ((launch.shared_bytes + 127) / 128 * 128 + 128));
    std::vector<Warp> warp_states(size_t{at_once} * warps);
    std::vector<Block> blocks(at_once);
    std::vector<Fiber> fibers(size_t{at_once} * threads);
    for (unsigned first = 0; first < block_count; first += at_once) {
        memset(shared.data(), 0xff, shared.size());
        for (unsigned b = 0; b < at_once; b++) {
            Block& state = blocks[b];
            state = Block();
            unsigned index = first + b;
            state.index = unpack(descending ? block_count - 1 - index : index, grid);
            state.warps = &warp_states[size_t{b} * warps];
            auto base = reinterpret_cast<uintptr_t>(shared.data() + b * (shared.size() / at_once));
            state.shared = reinterpret_cast<unsigned char*>((base + 127) & ~uintptr_t{127});
            state.shared_bytes = launch.shared_bytes;
            state.threads = threads;
            for (unsigned w = 0; w < warps; w++) state.warps[w].barrier = Barrier();
            for (unsigned t = 0; t < threads; t++) {
                Fiber& fiber = fibers[size_t{b} * threads + t];
                fiber = Fiber();
                fiber.linear = t;
                fiber.thread_index = unpack(t, block);
                fiber.block = &state;
                prepare(fiber, stacks.data() + (size_t{b} * threads + t) * STACK_BYTES);
            }
        }
        schedule(launch.name, fibers, threads);
    }
}

} // namespace emulation
