// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/guarded_copy.h"

#include <dlfcn.h>
#include <pthread.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <type_traits>

#include "base/safe_copy.h"

// Between p2p_copy and p2p_copy_failed nothing but the copy and the looks happen: no stack, no register that
// a caller keeps. A fault there goes on at p2p_copy_failed. A look takes the first byte, how many there are
// in steps of 4096 bytes, and the last byte.
#if defined(__x86_64__)
asm(R"(
.pushsection .text
.hidden p2p_copy
.globl p2p_copy
.hidden p2p_copy_failed
.globl p2p_copy_failed
.hidden p2p_look
.globl p2p_look
.hidden p2p_touch
.globl p2p_touch
.type p2p_copy, @function
.type p2p_look, @function
.type p2p_touch, @function
.p2align 4
p2p_copy:
  .cfi_startproc
  mov %rdx, %rcx
  rep movsb
  mov $1, %eax
  ret
p2p_look:
  movb (%rdx), %al
1:
  movb (%rdi), %al
  add $4096, %rdi
  dec %rsi
  jnz 1b
  mov $1, %eax
  ret
p2p_touch:
  lock orb $0, (%rdx)
2:
  lock orb $0, (%rdi)
  add $4096, %rdi
  dec %rsi
  jnz 2b
  mov $1, %eax
  ret
p2p_copy_failed:
  xor %eax, %eax
  ret
  .cfi_endproc
.size p2p_copy, . - p2p_copy
.popsection
)");
#elif defined(__aarch64__)
asm(R"(
.pushsection .text
.hidden p2p_copy
.globl p2p_copy
.hidden p2p_copy_failed
.globl p2p_copy_failed
.hidden p2p_look
.globl p2p_look
.hidden p2p_touch
.globl p2p_touch
.type p2p_copy, %function
.type p2p_look, %function
.type p2p_touch, %function
.p2align 4
p2p_copy:
  .cfi_startproc
  subs x2, x2, #16
  b.lo 2f
1: ldp x3, x4, [x1], #16
  stp x3, x4, [x0], #16
  subs x2, x2, #16
  b.hs 1b
2: adds x2, x2, #16
  b.eq 4f
3: ldrb w3, [x1], #1
  strb w3, [x0], #1
  subs x2, x2, #1
  b.ne 3b
4: mov w0, #1
  ret
p2p_look:
  ldrb w3, [x2]
5: ldrb w3, [x0]
  add x0, x0, #4096
  subs x1, x1, #1
  b.ne 5b
  mov w0, #1
  ret
p2p_touch:
6: ldxrb w3, [x2]
  stxrb w4, w3, [x2]
  cbnz w4, 6b
7: ldxrb w3, [x0]
  stxrb w4, w3, [x0]
  cbnz w4, 7b
  add x0, x0, #4096
  subs x1, x1, #1
  b.ne 7b
  mov w0, #1
  ret
p2p_copy_failed:
  mov w0, #0
  ret
  .cfi_endproc
.size p2p_copy, . - p2p_copy
.popsection
)");
#endif

extern "C" {
int p2p_copy(void* to, const void* from, std::size_t bytes);
int p2p_look(const void* first, std::size_t count, const void* last);
int p2p_touch(void* first, std::size_t count, void* last);
extern const char p2p_copy_failed;  // NOLINT(readability-identifier-naming)
}

namespace p2p {
namespace {

constexpr std::array kFaults{SIGSEGV, SIGBUS};

struct sigaction& handler_before(int fault) {
  static std::array<struct sigaction, 2> before{};
  return before[fault == SIGSEGV ? 0 : 1];
}

std::atomic<bool> in_place{false};

/// What a thread reads by guarded_read, and the way out.
struct Reading {
  std::uintptr_t begin;
  std::uintptr_t end;
  std::jmp_buf out;
};

// Each thread's, by pthread_getspecific: a handler may call that anywhere, also where the fault is not ours
// and its thread never read. A thread_local may have to allocate there, with malloc's lock held, or be of the
// kind for which a library that is loaded late may find no room.
pthread_key_t reading_key;

Reading* reading() { return static_cast<Reading*>(::pthread_getspecific(reading_key)); }

// Where a thread goes on that met bad memory: as if the read had called it.
[[noreturn]] void leave_reading() { std::longjmp(reading()->out, 1); }

bool reads(const void* address) {
  const Reading* const mine = reading();
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  return mine != nullptr && at >= mine->begin && at < mine->end;
}

/// To the program's own handler, as the system would have called it.
void pass_on(int fault, siginfo_t* info, void* context) {
  const struct sigaction& before = handler_before(fault);
  const bool by_fault = info->si_code > 0;  // else a process sent it
  struct sigaction common{};
  common.sa_handler = SIG_DFL;
  if ((before.sa_flags & SA_SIGINFO) == 0 && before.sa_handler == SIG_IGN && !by_fault) return;
  if ((before.sa_flags & SA_SIGINFO) == 0 && (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN)) {
    ::sigaction(fault, &common, nullptr);
    if (!by_fault) ::raise(fault);
    return;  // what faults comes again, and ends the process
  }
  if ((before.sa_flags & SA_RESETHAND) != 0) ::sigaction(fault, &common, nullptr);
  if ((before.sa_flags & SA_SIGINFO) != 0) return before.sa_sigaction(fault, info, context);
  before.sa_handler(fault);
}

/// Async-signal-safe, on any thread and stack.
void on_fault(int fault, siginfo_t* info, void* context) {
  auto& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  auto& at = machine.gregs[REG_RIP];
  auto& stack = machine.gregs[REG_RSP];
  constexpr int kInUse = 128;  // below the stack's end
  constexpr int kReturn = 8;   // which a call would have put there
#else
  auto& at = machine.pc;
  auto& stack = machine.sp;
  constexpr int kInUse = 0;
  constexpr int kReturn = 0;
#endif
  using Place = std::remove_reference_t<decltype(at)>;
  const auto begin = reinterpret_cast<Place>(&p2p_copy);
  const auto end = reinterpret_cast<Place>(&p2p_copy_failed);
  if (info->si_code > 0 && at >= begin && at < end) {
    at = end;
  } else if (info->si_code > 0 && reads(info->si_addr)) {
    at = reinterpret_cast<Place>(&leave_reading);
    stack = (stack - kInUse) / 16 * 16 - kReturn;
  } else {
    pass_on(fault, info, context);
  }
}

bool is_in_place() {
  for (const int fault : kFaults) {
    struct sigaction now{};
    if (::sigaction(fault, nullptr, &now) != 0 || now.sa_sigaction != &on_fault) return false;
  }
  return true;
}

// Signals stay masked during the handler as they were for the one before, to which most faults go.
bool put_in_place() {
  Dl_info library{};
  // The handler outlives whoever closes the library.
  if (::dladdr(reinterpret_cast<void*>(&on_fault), &library) != 0) {
    ::dlopen(library.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  }
  if (::pthread_key_create(&reading_key, nullptr) != 0) return false;
  for (const int fault : kFaults) {
    struct sigaction& before = handler_before(fault);
    if (::sigaction(fault, nullptr, &before) != 0) return false;
    struct sigaction own{};
    own.sa_sigaction = &on_fault;
    own.sa_mask = before.sa_mask;
    own.sa_flags = SA_SIGINFO | SA_ONSTACK | (before.sa_flags & (SA_NODEFER | SA_RESTART));
    if (::sigaction(fault, &own, nullptr) != 0) return false;
  }
  in_place = is_in_place();  // a sanitizer may keep its own
  return true;
}

bool is_put() {
  static const bool once = put_in_place();
  return once;
}

/// A fault ends the process, whatever handler there is, on a thread that blocks its signal. Asked once a
/// thread: programs block signals as a thread begins.
bool takes_faults() {
  static thread_local const bool takes = [] {
    sigset_t blocked;
    return ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked) == 0 &&
           std::ranges::none_of(kFaults, [&](int fault) { return ::sigismember(&blocked, fault) != 0; });
  }();
  return takes;
}

bool holds() { return is_put() && in_place.load(std::memory_order_relaxed) && takes_faults(); }

// What pieces in no order cost is the way to memory: of the piece so many ahead the first bytes are fetched,
// and the processor fetches the rest of a longer one by itself.
constexpr std::size_t kAhead = 6;
constexpr std::size_t kFetched = 1024;
constexpr std::size_t kLine = 64;

template <bool kWrites>
void fetch(const iovec& piece) {
  const auto* const at = static_cast<const std::byte*>(piece.iov_base);
  const std::size_t size = std::min(piece.iov_len, kFetched);
  for (std::size_t i = 0; i < size; i += kLine) __builtin_prefetch(at + i, kWrites ? 1 : 0);
  if (size != 0) __builtin_prefetch(at + size - 1, kWrites ? 1 : 0);
}

/// Calls `copy(piece, size, done)` for one after the other; false ends it.
template <bool kWrites, class Copy>
std::size_t each_piece(std::span<const iovec> pieces, std::size_t bytes, std::size_t skip, Copy copy) {
  std::size_t at = 0;
  for (; at != pieces.size() && skip >= pieces[at].iov_len; ++at) skip -= pieces[at].iov_len;
  std::size_t done = 0;
  for (; done != bytes && at != pieces.size(); ++at) {
    if (at + kAhead < pieces.size()) fetch<kWrites>(pieces[at + kAhead]);
    const std::size_t size = std::min(pieces[at].iov_len - skip, bytes - done);
    if (!copy(static_cast<std::byte*>(pieces[at].iov_base) + skip, size, done)) break;
    done += size;
    skip = 0;
  }
  return done;
}

std::size_t pages(std::size_t bytes) { return (bytes + 4095) / 4096; }

}  // namespace

bool guarded_copy(void* to, const void* from, std::size_t bytes) {
  if (holds()) return p2p_copy(to, from, bytes) != 0;
  return copy_across(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
}

std::size_t guarded_gather(std::byte* to, std::span<const iovec> from, std::size_t bytes, std::size_t skip) {
  if (!holds()) return 0;
  return each_piece<false>(from, bytes, skip,
                           [to](const std::byte* piece, std::size_t size, std::size_t done) {
                             return p2p_copy(to + done, piece, size) != 0;
                           });
}

std::size_t guarded_scatter(std::span<const iovec> to, const std::byte* from, std::size_t bytes,
                            std::size_t skip) {
  if (!holds()) return 0;
  return each_piece<true>(to, bytes, skip, [from](std::byte* piece, std::size_t size, std::size_t done) {
    return p2p_copy(piece, from + done, size) != 0;
  });
}

std::optional<bool> guarded_look(const void* from, std::size_t bytes) {
  if (!holds()) return std::nullopt;
  if (bytes == 0) return true;
  return p2p_look(from, pages(bytes), static_cast<const std::byte*>(from) + bytes - 1) != 0;
}

std::optional<bool> guarded_touch(void* to, std::size_t bytes) {
  if (!holds()) return std::nullopt;
  if (bytes == 0) return true;
  return p2p_touch(to, pages(bytes), static_cast<std::byte*>(to) + bytes - 1) != 0;
}

std::optional<bool> guarded_read(std::span<const std::byte> bytes, void (*read)(void* argument),
                                 void* argument) {
  if (!holds()) return std::nullopt;
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  Reading mine{begin, begin + bytes.size(), {}};
  if (::pthread_setspecific(reading_key, &mine) != 0) return std::nullopt;
  const bool good = setjmp(mine.out) == 0;  // NOLINT(*-err52-cpp): nothing is owned on the way
  if (good) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    read(argument);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  ::pthread_setspecific(reading_key, nullptr);
  return good;
}

void look_after_guard() {
  if (is_put()) in_place = is_in_place();
}

}  // namespace p2p
