"""The one native module: LLVM IR text of the table walker, the thread pool and the SIGINT flag.

It is compiled once per machine and tinyjax version (the object is cached on disk) and serves every
program: `steps.py` says what each step means. Exported:

    enter(block) -> status     start an invocation. block: desc, workspace, SIGINT count seen by
                               Python, arguments, dims (all int64). The frame is laid out at the
                               start of the workspace.
    enter_watched(block)       the same for programs that loop: first make sure that our SIGINT
                               handler is the one installed (one system call, about 0.1 us).
    resume(workspace)          go on after a RETURN or a poll. Status: 0 ended, 1 RETURN, 2 poll.
    set_threads(n)             number of threads that share a SPREAD, this one included
    reset_after_fork()         the child has none of the parent's threads
    signals, crumbs, started   data: SIGINTs seen; where TRACE writes; threads started so far

**Frame** (16 words, then dims, slots, loop states, gathered pointers, each at the offset `desc`
gives): see the field numbers below. A called program's frame lies in its own workspace and names
its caller's, so returning to Python from any depth and coming back needs no native stack.

**Parallel for.** One job at a time; a thread that finds the pool owned runs its chunks itself.
`gate` holds the state of the job: its top bit says open, the rest counts helpers inside. A helper
joins by compare-and-swap only while the gate is open, so the owner never waits for a thread that is
still asleep: it closes the gate when no chunk is left and waits only for those inside. Chunks are
handed out by one atomic counter. `epoch` counts jobs and is what idle helpers spin on (bounded) and
then sleep on (futex). Both sleeps use the same argument: the sleeper announces itself, then the
kernel compares the word again; the waker changes the word, then looks for sleepers; all four
accesses are sequentially consistent, so one of them sees the other.
RETURN tells spinning helpers to go to sleep, so that NumPy's BLAS threads have the cores.

**SIGINT.** A handler in front of Python's counts and calls Python's (installed with the flags and
mask that Python's had). It is put in place only where a handler function already is: a process that
ignores SIGINT or dies of it keeps doing so. When `signal.signal` replaces us, the next looping
program puts us back; a foreign C handler that replaced us is left alone. Polling Python's own flag
is not possible: it is private to the interpreter.

The text uses a few macros, expanded by `expand`, to keep the cases short: `%.x` is a name local to
the case, `words a b` loads the words after the opcode, `goto n` goes n words on.

Source for the two-sided futex protocol: U. Drepper, "Futexes are tricky" (2011).
"""

from __future__ import annotations

import re

from tinyjax.runtime.steps import Opcode

# Frame fields (int64 words at the start of a workspace).
PARENT, CODE, DESC, SLOTS, DIMS, LOOPS, GATHER, CURRENT, SEEN, RESULT, COUNT = range(11)
FRAME_BYTES = 128

# Fields of a program's descriptor. Offsets are bytes from the start of the workspace.
(
    TABLE, N_ARGS, N_CONSTS, CONSTS, N_OFFSETS, OFFSETS, N_DIMS, DIMS_AT, SLOTS_AT, LOOPS_AT,
    GATHER_AT,
) = range(11)  # fmt: skip
DESC_WORDS = 11

ENDED, RETURNED, POLLED = range(3)
CRUMB_BYTES = 128
CRUMBS = 8  # a ring: the last few kernels, in case several threads run programs

# Idle helpers spin this many pauses (about 20 to 90 us by core type) before they sleep: longer than
# the gap between two steps of a program, shorter than what a sleeping core would save.
SPINS = 2000

SYMBOLS = frozenset(
    ("memcpy", "memmove", "memset", "sigaction", "syscall")
    + ("pthread_create", "pthread_detach", "pthread_sigmask")
)

# Entry points that only read `block`; one body, so LLVM merges what can be merged.
HEADER = """
@signals = dso_local global i64 0, align 128
@chained = internal global ptr null
@crumbs = dso_local global ptr null
@started = dso_local global i64 0, align 128
@threads = internal global i64 1
@spin_allowed = internal global i32 0, align 128

declare ptr @memcpy(ptr, ptr, i64)
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define internal i64 @operand(ptr %slots, ptr %dims, i64 %kind, i64 %word) alwaysinline {
  switch i64 %kind, label %constant [ i64 1, label %dim
                                      i64 2, label %cell ]
constant:
  ret i64 %word
dim:
  %dim.at = getelementptr i64, ptr %dims, i64 %word
  %size = load i64, ptr %dim.at
  ret i64 %size
cell:
  %slot.at = getelementptr ptr, ptr %slots, i64 %word
  %cell.at = load ptr, ptr %slot.at
  %value = load i64, ptr %cell.at
  ret i64 %value
}

; to[k] = slots[list[k]]
define internal void @gather(ptr %to, ptr %slots, ptr %list, i64 %n) alwaysinline {
entry:
  %none = icmp slt i64 %n, 1
  br i1 %none, label %done, label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k1, %next ]
  %list.at = getelementptr i64, ptr %list, i64 %k
  %index = load i64, ptr %list.at
  %slot.at = getelementptr ptr, ptr %slots, i64 %index
  %pointer = load ptr, ptr %slot.at
  %to.at = getelementptr ptr, ptr %to, i64 %k
  store ptr %pointer, ptr %to.at
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, %n
  br i1 %more, label %next, label %done
done:
  ret void
}

define internal void @copy_words(ptr %to, ptr %from, i64 %n) alwaysinline {
entry:
  %none = icmp slt i64 %n, 1
  br i1 %none, label %done, label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k1, %next ]
  %from.at = getelementptr i64, ptr %from, i64 %k
  %word = load i64, ptr %from.at
  %to.at = getelementptr i64, ptr %to, i64 %k
  store i64 %word, ptr %to.at
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, %n
  br i1 %more, label %next, label %done
done:
  ret void
}

; Lay out a frame; the caller fills dims and argument slots.
define internal void @make_frame(ptr %frame, ptr %parent, ptr %desc) {
entry:
  putp %frame PARENT %parent
  putp %frame DESC %desc
  getp %table %desc TABLE
  putp %frame CODE %table
  geti %dims_at %desc DIMS_AT
  %dims = getelementptr i8, ptr %frame, i64 %dims_at
  putp %frame DIMS %dims
  geti %slots_at %desc SLOTS_AT
  %slots = getelementptr i8, ptr %frame, i64 %slots_at
  putp %frame SLOTS %slots
  geti %loops_at %desc LOOPS_AT
  %loops = getelementptr i8, ptr %frame, i64 %loops_at
  putp %frame LOOPS %loops
  geti %gather_at %desc GATHER_AT
  %to = getelementptr i8, ptr %frame, i64 %gather_at
  putp %frame GATHER %to
  geti %n_args %desc N_ARGS
  geti %n_consts %desc N_CONSTS
  getp %consts %desc CONSTS
  %consts_to = getelementptr ptr, ptr %slots, i64 %n_args
  call void @copy_words(ptr %consts_to, ptr %consts, i64 %n_consts)
  geti %n %desc N_OFFSETS
  getp %offsets %desc OFFSETS
  %first = getelementptr ptr, ptr %consts_to, i64 %n_consts
  %none = icmp slt i64 %n, 1
  br i1 %none, label %done, label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k1, %next ]
  %offset.at = getelementptr i64, ptr %offsets, i64 %k
  %offset = load i64, ptr %offset.at
  %address = getelementptr i8, ptr %frame, i64 %offset
  %slot.at = getelementptr ptr, ptr %first, i64 %k
  store ptr %address, ptr %slot.at
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, %n
  br i1 %more, label %next, label %done
done:
  ret void
}

define dso_local i64 @enter(ptr %block) {
  getp %desc %block 0
  getp %frame %block 1
  geti %seen %block 2
  call void @make_frame(ptr %frame, ptr null, ptr %desc)
  putp %frame CURRENT %frame
  puti %frame SEEN %seen
  geti %n_args %desc N_ARGS
  geti %n_dims %desc N_DIMS
  getp %slots %frame SLOTS
  getp %dims %frame DIMS
  %args = getelementptr i64, ptr %block, i64 3
  call void @copy_words(ptr %slots, ptr %args, i64 %n_args)
  %sizes = getelementptr i64, ptr %args, i64 %n_args
  call void @copy_words(ptr %dims, ptr %sizes, i64 %n_dims)
  %status = call i64 @walk(ptr %frame)
  ret i64 %status
}

define dso_local i64 @resume(ptr %root) {
  %status = call i64 @walk(ptr %root)
  ret i64 %status
}

; The chunks of [lo, hi) one after the other: what the pool does, on one thread.
define internal void @in_turn(ptr %fn, ptr %args, ptr %dims, i64 %lo, i64 %hi, i64 %chunk) {
entry:
  %none = icmp sge i64 %lo, %hi
  br i1 %none, label %done, label %next
next:
  %at = phi i64 [ %lo, %entry ], [ %stop, %next ]
  %stop = add i64 %at, %chunk
  %over = icmp sgt i64 %stop, %hi
  %end = select i1 %over, i64 %hi, i64 %stop
  call void %fn(ptr %args, ptr %dims, i64 %at, i64 %end)
  %more = icmp slt i64 %stop, %hi
  br i1 %more, label %next, label %done
done:
  ret void
}
"""

WALK = """
define internal i64 @walk(ptr %root) {
entry:
  %frame.v = alloca ptr
  %code.v = alloca ptr
  %slots.v = alloca ptr
  %dims.v = alloca ptr
  getp %innermost %root CURRENT
  store ptr %innermost, ptr %frame.v
  br label %frame_changed

frame_changed:
  %changed = load ptr, ptr %frame.v
  getp %code0 %changed CODE
  getp %slots0 %changed SLOTS
  getp %dims0 %changed DIMS
  store ptr %code0, ptr %code.v
  store ptr %slots0, ptr %slots.v
  store ptr %dims0, ptr %dims.v
  br label %head

head:
  %frame = load ptr, ptr %frame.v
  %code = load ptr, ptr %code.v
  %slots = load ptr, ptr %slots.v
  %dims = load ptr, ptr %dims.v
  %opcode = load i64, ptr %code
  switch i64 %opcode, label %unknown [
{cases}
  ]

unknown:
  unreachable

; Go on at %code.v unless a SIGINT came since this invocation last looked.
poll:
  %count = load volatile i64, ptr @signals
  geti %seen %root SEEN
  %quiet = icmp eq i64 %count, %seen
  br i1 %quiet, label %head, label %interrupted
interrupted:
  %resume_at = load ptr, ptr %code.v
  putp %frame CODE %resume_at
  putp %root CURRENT %frame
  {rest}
  ret i64 {POLLED}

case END
  getp %.parent %frame PARENT
  %.outermost = icmp eq ptr %.parent, null
  br i1 %.outermost, label %ended, label %back
ended:
  ret i64 {ENDED}
back:
  store ptr %.parent, ptr %frame.v
  br label %frame_changed

case CALL
  words fn lo hi n
  getp %.args %frame GATHER
  %.list = getelementptr i64, ptr %code, i64 5
  call void @gather(ptr %.args, ptr %slots, ptr %.list, i64 %.n)
  %.kernel = inttoptr i64 %.fn to ptr
  call void %.kernel(ptr %.args, ptr %dims, i64 %.lo, i64 %.hi)
  %.size = add i64 %.n, 5
  goto %.size

case SPREAD
  words fn lo.kind lo.word hi.kind hi.word chunk n
  %.lo = call i64 @operand(ptr %slots, ptr %dims, i64 %.lo.kind, i64 %.lo.word)
  %.hi = call i64 @operand(ptr %slots, ptr %dims, i64 %.hi.kind, i64 %.hi.word)
  getp %.args %frame GATHER
  %.list = getelementptr i64, ptr %code, i64 8
  call void @gather(ptr %.args, ptr %slots, ptr %.list, i64 %.n)
  %.kernel = inttoptr i64 %.fn to ptr
  %.size = add i64 %.n, 8
  %.shared = icmp sgt i64 %.chunk, 0
  br i1 %.shared, label %share, label %whole
whole:
  call void %.kernel(ptr %.args, ptr %dims, i64 %.lo, i64 %.hi)
  goto %.size
share:
  call void @parallel(ptr %.kernel, ptr %.args, ptr %dims, i64 %.lo, i64 %.hi, i64 %.chunk)
  goto %.size

case PROGRAM
  words desc ws n
  %.desc.p = inttoptr i64 %.desc to ptr
  slot %.callee %.ws
  call void @make_frame(ptr %.callee, ptr %frame, ptr %.desc.p)
  getp %.to %.callee SLOTS
  %.list = getelementptr i64, ptr %code, i64 4
  call void @gather(ptr %.to, ptr %slots, ptr %.list, i64 %.n)
  %.m.at = getelementptr i64, ptr %.list, i64 %.n
  %.m = load i64, ptr %.m.at
  %.dimlist = getelementptr i64, ptr %.m.at, i64 1
  getp %.dims.to %.callee DIMS
  call void @gather(ptr %.dims.to, ptr %dims, ptr %.dimlist, i64 %.m)
  %.after = getelementptr i64, ptr %.dimlist, i64 %.m
  putp %frame CODE %.after
  store ptr %.callee, ptr %frame.v
  br label %frame_changed

case LOOP
  words kind word counter reverse state exit
  %.trip = call i64 @operand(ptr %slots, ptr %dims, i64 %.kind, i64 %.word)
  %.some = icmp sgt i64 %.trip, 0
  br i1 %.some, label %loop_begin, label %loop_skip
loop_skip:
  goto %.exit
loop_begin:
  getp %.loops %frame LOOPS
  %.twice = shl i64 %.state, 1
  %.done.at = getelementptr i64, ptr %.loops, i64 %.twice
  %.trip.at = getelementptr i64, ptr %.done.at, i64 1
  store i64 0, ptr %.done.at
  store i64 %.trip, ptr %.trip.at
  %.counts = icmp sge i64 %.counter, 0
  br i1 %.counts, label %loop_count, label %loop_body
loop_count:
  slot %.cell %.counter
  %.last = add i64 %.trip, -1
  %.falls = icmp ne i64 %.reverse, 0
  %.first = select i1 %.falls, i64 %.last, i64 0
  store i64 %.first, ptr %.cell
  br label %loop_body
loop_body:
  goto 7

case NEXT
  words back counter reverse state
  getp %.loops %frame LOOPS
  %.twice = shl i64 %.state, 1
  %.done.at = getelementptr i64, ptr %.loops, i64 %.twice
  %.trip.at = getelementptr i64, ptr %.done.at, i64 1
  %.done = load i64, ptr %.done.at
  %.trip = load i64, ptr %.trip.at
  %.now = add i64 %.done, 1
  store i64 %.now, ptr %.done.at
  %.more = icmp slt i64 %.now, %.trip
  br i1 %.more, label %next_again, label %next_leave
next_leave:
  goto 5
next_again:
  %.target = getelementptr i64, ptr %code, i64 %.back
  store ptr %.target, ptr %code.v
  %.counts = icmp sge i64 %.counter, 0
  br i1 %.counts, label %next_count, label %poll
next_count:
  slot %.cell %.counter
  %.left = sub i64 %.trip, %.now
  %.mirrored = add i64 %.left, -1
  %.falls = icmp ne i64 %.reverse, 0
  %.number = select i1 %.falls, i64 %.mirrored, i64 %.now
  store i64 %.number, ptr %.cell
  br label %poll

case JUMP
  words to polls
  %.target = getelementptr i64, ptr %code, i64 %.to
  store ptr %.target, ptr %code.v
  %.looks = icmp ne i64 %.polls, 0
  br i1 %.looks, label %poll, label %head

case UNLESS
  words pred to
  slot %.cell %.pred
  %.byte = load i8, ptr %.cell
  %.false = icmp eq i8 %.byte, 0
  %.size = select i1 %.false, i64 %.to, i64 3
  goto %.size

case BRANCH
  words index kind n
  slot %.cell %.index
  %.boolean = icmp ne i64 %.kind, 0
  br i1 %.boolean, label %branch_bool, label %branch_int
branch_bool:
  %.byte = load i8, ptr %.cell
  %.true = icmp ne i8 %.byte, 0
  %.bit = zext i1 %.true to i64
  br label %branch_clamp
branch_int:
  %.narrow = load i32, ptr %.cell
  %.wide = sext i32 %.narrow to i64
  br label %branch_clamp
branch_clamp:
  %.raw = phi i64 [ %.bit, %branch_bool ], [ %.wide, %branch_int ]
  %.low = icmp slt i64 %.raw, 0
  %.floored = select i1 %.low, i64 0, i64 %.raw
  %.last = add i64 %.n, -1
  %.high = icmp sgt i64 %.floored, %.last
  %.chosen = select i1 %.high, i64 %.last, i64 %.floored
  %.word = add i64 %.chosen, 4
  %.to.at = getelementptr i64, ptr %code, i64 %.word
  %.to = load i64, ptr %.to.at
  goto %.to

case POINT
  words dst src index.kind index.word stride.kind stride.word
  %.index = call i64 @operand(ptr %slots, ptr %dims, i64 %.index.kind, i64 %.index.word)
  %.stride = call i64 @operand(ptr %slots, ptr %dims, i64 %.stride.kind, i64 %.stride.word)
  %.offset = mul i64 %.index, %.stride
  slot %.base %.src
  %.moved = getelementptr i8, ptr %.base, i64 %.offset
  setslot %.dst %.moved
  goto 7

case ADVANCE
  words slot kind word
  %.stride = call i64 @operand(ptr %slots, ptr %dims, i64 %.kind, i64 %.word)
  slot %.base %.slot
  %.moved = getelementptr i8, ptr %.base, i64 %.stride
  setslot %.slot %.moved
  goto 4

case SWAP
  words a b
  slot %.left %.a
  slot %.right %.b
  setslot %.a %.right
  setslot %.b %.left
  goto 3

case COPY
  words dst src kind word
  %.nbytes = call i64 @operand(ptr %slots, ptr %dims, i64 %.kind, i64 %.word)
  slot %.to %.dst
  slot %.from %.src
  call void @llvm.memmove.p0.p0.i64(ptr %.to, ptr %.from, i64 %.nbytes, i1 false)
  goto 5

case FILL
  words dst byte kind word
  %.nbytes = call i64 @operand(ptr %slots, ptr %dims, i64 %.kind, i64 %.word)
  slot %.to %.dst
  %.value = trunc i64 %.byte to i8
  call void @llvm.memset.p0.i64(ptr %.to, i8 %.value, i64 %.nbytes, i1 false)
  goto 5

case RETURN
  words result n
  getp %.to %frame GATHER
  %.list = getelementptr i64, ptr %code, i64 3
  call void @gather(ptr %.to, ptr %slots, ptr %.list, i64 %.n)
  %.after = getelementptr i64, ptr %.list, i64 %.n
  putp %frame CODE %.after
  puti %frame RESULT %.result
  puti %frame COUNT %.n
  putp %root CURRENT %frame
  {rest}
  ret i64 {RETURNED}

case TRACE
  words name
  %.ring = load ptr, ptr @crumbs
  %.absent = icmp eq ptr %.ring, null
  br i1 %.absent, label %trace_done, label %trace_write
trace_write:
  %.count = atomicrmw add ptr %.ring, i64 1 seq_cst
  %.place = and i64 %.count, {LAST_CRUMB}
  %.bytes = mul i64 %.place, {CRUMB_BYTES}
  %.skip = add i64 %.bytes, {CRUMB_BYTES}
  %.to = getelementptr i8, ptr %.ring, i64 %.skip
  %.name.p = inttoptr i64 %.name to ptr
  %.copied = call ptr @memcpy(ptr %.to, ptr %.name.p, i64 {CRUMB_BYTES})
  br label %trace_done
trace_done:
  goto 2
}
"""

SIGINT = """
declare i32 @sigaction(i32, ptr, ptr)

define internal void @on_sigint(i32 %number, ptr %info, ptr %context) {
  %count = atomicrmw add ptr @signals, i64 1 seq_cst
  %previous = load ptr, ptr @chained
  call void %previous(i32 %number, ptr %info, ptr %context)
  ret void
}

; struct sigaction begins with the handler on every system we know; the rest is copied untouched.
define internal void @watch_sigint() {
  %action = alloca [256 x i8], align 16
  call void @llvm.memset.p0.i64(ptr %action, i8 0, i64 256, i1 false)
  %asked = call i32 @sigaction(i32 2, ptr null, ptr %action)
  %current = load ptr, ptr %action
  %ours = icmp eq ptr %current, @on_sigint
  %number = ptrtoint ptr %current to i64
  %none = icmp ult i64 %number, 2
  %leave = or i1 %ours, %none
  br i1 %leave, label %done, label %look
look:
  %previous = load ptr, ptr @chained
  %fresh = icmp eq ptr %previous, null
  %python = icmp eq ptr %previous, %current
  %install = or i1 %fresh, %python
  br i1 %install, label %put, label %done
put:
  store ptr %current, ptr @chained
  store ptr @on_sigint, ptr %action
  %set = call i32 @sigaction(i32 2, ptr %action, ptr null)
  br label %done
done:
  ret void
}
"""

ENTER_WATCHED = """
define dso_local i64 @enter_watched(ptr %block) {
  {watch}
  %status = call i64 @enter(ptr %block)
  ret i64 %status
}
"""

POOL = """
@owner = internal global i32 0, align 128
@epoch = internal global i32 0, align 128
@sleepers = internal global i32 0, align 128
@gate = internal global i32 0, align 128
@gate_waiter = internal global i32 0, align 128
@next = internal global i64 0, align 128
@job_fn = internal global ptr null, align 128
@job_args = internal global ptr null
@job_dims = internal global ptr null
@job_hi = internal global i64 0
@job_chunk = internal global i64 0
@job_helpers = internal global i32 0

declare i64 @syscall(i64, ...)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_sigmask(i32, ptr, ptr)
{declare_pause}

define internal void @futex_wait(ptr %word, i32 %value) {
  %r = call i64 (i64, ...) @syscall(i64 {futex}, ptr %word, i32 128, i32 %value, ptr null)
  ret void
}

define internal void @futex_wake(ptr %word, i32 %n) {
  %r = call i64 (i64, ...) @syscall(i64 {futex}, ptr %word, i32 129, i32 %n)
  ret void
}

define internal void @take_chunks() {
entry:
  %fn = load ptr, ptr @job_fn
  %args = load ptr, ptr @job_args
  %dims = load ptr, ptr @job_dims
  %hi = load i64, ptr @job_hi
  %chunk = load i64, ptr @job_chunk
  br label %take
take:
  %at = atomicrmw add ptr @next, i64 %chunk monotonic
  %none = icmp sge i64 %at, %hi
  br i1 %none, label %done, label %run
run:
  %stop = add i64 %at, %chunk
  %over = icmp sgt i64 %stop, %hi
  %end = select i1 %over, i64 %hi, i64 %stop
  call void %fn(ptr %args, ptr %dims, i64 %at, i64 %end)
  br label %take
done:
  ret void
}

define internal void @help() {
entry:
  %first = load atomic i32, ptr @gate seq_cst, align 4
  br label %try
try:
  %gate = phi i32 [ %first, %entry ], [ %seen, %join ]
  %closed = icmp sge i32 %gate, 0
  br i1 %closed, label %leave, label %room
room:
  %inside = and i32 %gate, 2147483647
  %helpers = load atomic i32, ptr @job_helpers monotonic, align 4
  %full = icmp sge i32 %inside, %helpers
  br i1 %full, label %leave, label %join
join:
  %gate1 = add i32 %gate, 1
  %swap = cmpxchg ptr @gate, i32 %gate, i32 %gate1 seq_cst seq_cst
  %seen = extractvalue { i32, i1 } %swap, 0
  %joined = extractvalue { i32, i1 } %swap, 1
  br i1 %joined, label %work, label %try
work:
  call void @take_chunks()
  %before = atomicrmw sub ptr @gate, i32 1 seq_cst
  %last = icmp eq i32 %before, 1
  br i1 %last, label %look, label %leave
look:
  %waiter = load atomic i32, ptr @gate_waiter seq_cst, align 4
  %waits = icmp ne i32 %waiter, 0
  br i1 %waits, label %wake, label %leave
wake:
  call void @futex_wake(ptr @gate, i32 1)
  br label %leave
leave:
  ret void
}

define internal ptr @helper(ptr %first) {
entry:
  %first.word = ptrtoint ptr %first to i64
  %epoch0 = trunc i64 %first.word to i32
  br label %idle
idle:
  %known = phi i32 [ %epoch0, %entry ], [ %known, %woken ], [ %epoch, %go ]
  br label %spin
spin:
  %spins = phi i32 [ 0, %idle ], [ %spins1, %pause ]
  %now = load atomic i32, ptr @epoch monotonic, align 4
  %new = icmp ne i32 %now, %known
  br i1 %new, label %woken, label %patience
patience:
  %spins1 = add i32 %spins, 1
  %allowed = load atomic i32, ptr @spin_allowed monotonic, align 4
  %forbidden = icmp eq i32 %allowed, 0
  %enough = icmp ugt i32 %spins1, {SPINS}
  %tired = or i1 %forbidden, %enough
  br i1 %tired, label %sleep, label %pause
pause:
  {pause}
  br label %spin
sleep:
  %s0 = atomicrmw add ptr @sleepers, i32 1 seq_cst
  call void @futex_wait(ptr @epoch, i32 %known)
  %s1 = atomicrmw sub ptr @sleepers, i32 1 seq_cst
  br label %woken
woken:
  %epoch = load atomic i32, ptr @epoch seq_cst, align 4
  %changed = icmp ne i32 %epoch, %known
  br i1 %changed, label %go, label %idle
go:
  call void @help()
  br label %idle
}

; Called by the owner. Helpers take no signals except those of their own faults, so that SIGINT
; interrupts the main thread and faulthandler still reports a crash.
define internal void @start_helpers(i64 %wanted) {
entry:
  %all = alloca [16 x i64], align 16
  %old = alloca [16 x i64], align 16
  %thread = alloca i64
  call void @llvm.memset.p0.i64(ptr %all, i8 255, i64 128, i1 false)
  store i64 {blocked}, ptr %all
  %m0 = call i32 @pthread_sigmask(i32 2, ptr %all, ptr %old)
  br label %next
next:
  %have = load i64, ptr @started
  %enough = icmp sge i64 %have, %wanted
  br i1 %enough, label %done, label %make
make:
  %epoch = load atomic i32, ptr @epoch monotonic, align 4
  %epoch.word = zext i32 %epoch to i64
  %argument = inttoptr i64 %epoch.word to ptr
  %failed = call i32 @pthread_create(ptr %thread, ptr null, ptr @helper, ptr %argument)
  %ok = icmp eq i32 %failed, 0
  br i1 %ok, label %made, label %done
made:
  %id = load i64, ptr %thread
  %d = call i32 @pthread_detach(i64 %id)
  %have1 = add i64 %have, 1
  store i64 %have1, ptr @started
  br label %next
done:
  %m1 = call i32 @pthread_sigmask(i32 2, ptr %old, ptr null)
  ret void
}

define internal void @parallel(ptr %fn, ptr %args, ptr %dims, i64 %lo, i64 %hi, i64 %chunk) {
entry:
  %length = sub i64 %hi, %lo
  %one = icmp sle i64 %length, %chunk
  %threads = load volatile i64, ptr @threads
  %others = add i64 %threads, -1
  %single = icmp sle i64 %others, 0
  %plain = or i1 %one, %single
  br i1 %plain, label %alone, label %claim
alone:
  call void @in_turn(ptr %fn, ptr %args, ptr %dims, i64 %lo, i64 %hi, i64 %chunk)
  ret void
claim:
  %claimed = cmpxchg ptr @owner, i32 0, i32 1 acquire monotonic
  %mine = extractvalue { i32, i1 } %claimed, 1
  br i1 %mine, label %own, label %alone
own:
  %round = add i64 %length, -1
  %extra = sdiv i64 %round, %chunk
  %fewer = icmp slt i64 %extra, %others
  %useful = select i1 %fewer, i64 %extra, i64 %others
  %started = load i64, ptr @started
  %short = icmp slt i64 %started, %useful
  br i1 %short, label %start, label %post
start:
  call void @start_helpers(i64 %useful)
  br label %post
post:
  %helpers = trunc i64 %useful to i32
  store ptr %fn, ptr @job_fn
  store ptr %args, ptr @job_args
  store ptr %dims, ptr @job_dims
  store i64 %hi, ptr @job_hi
  store i64 %chunk, ptr @job_chunk
  store atomic i32 %helpers, ptr @job_helpers monotonic, align 4
  store atomic i64 %lo, ptr @next monotonic, align 8
  store atomic i32 1, ptr @spin_allowed monotonic, align 4
  store atomic i32 -2147483648, ptr @gate seq_cst, align 4
  %e = atomicrmw add ptr @epoch, i32 1 seq_cst
  %asleep = load atomic i32, ptr @sleepers seq_cst, align 4
  %some = icmp sgt i32 %asleep, 0
  br i1 %some, label %wake, label %work
wake:
  call void @futex_wake(ptr @epoch, i32 %helpers)
  br label %work
work:
  call void @take_chunks()
  %before = atomicrmw and ptr @gate, i32 2147483647 seq_cst
  %inside = and i32 %before, 2147483647
  %empty = icmp eq i32 %inside, 0
  br i1 %empty, label %release, label %spin
spin:
  %spins = phi i32 [ 0, %work ], [ %spins1, %spin_more ]
  %gate = load atomic i32, ptr @gate acquire, align 4
  %left = icmp eq i32 %gate, 0
  br i1 %left, label %release, label %patience
patience:
  %spins1 = add i32 %spins, 1
  %tired = icmp ugt i32 %spins1, {SPINS}
  br i1 %tired, label %announce, label %spin_more
spin_more:
  {pause}
  br label %spin
announce:
  store atomic i32 1, ptr @gate_waiter seq_cst, align 4
  br label %check
check:
  %still = load atomic i32, ptr @gate seq_cst, align 4
  %gone = icmp eq i32 %still, 0
  br i1 %gone, label %unannounce, label %sleep
sleep:
  call void @futex_wait(ptr @gate, i32 %still)
  br label %check
unannounce:
  store atomic i32 0, ptr @gate_waiter seq_cst, align 4
  br label %release
release:
  store atomic i32 0, ptr @owner release, align 4
  ret void
}

define dso_local void @set_threads(i64 %n) {
  store volatile i64 %n, ptr @threads
  ret void
}

define dso_local void @reset_after_fork() {
  store i64 0, ptr @started
  store i32 0, ptr @owner
  store i32 0, ptr @sleepers
  store i32 0, ptr @gate
  store i32 0, ptr @gate_waiter
  ret void
}
"""

NO_POOL = """
define internal void @parallel(ptr %fn, ptr %args, ptr %dims, i64 %lo, i64 %hi, i64 %chunk) {
  call void @in_turn(ptr %fn, ptr %args, ptr %dims, i64 %lo, i64 %hi, i64 %chunk)
  ret void
}

define dso_local void @set_threads(i64 %n) {
  ret void
}

define dso_local void @reset_after_fork() {
  ret void
}
"""

# Signals a helper may receive: its own faults (SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV on Linux).
FAULTS = (4, 6, 7, 8, 11)

PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}
FUTEX = {"x86_64": 202, "aarch64": 98}

EXPORTS = (
    "enter", "enter_watched", "resume", "set_threads", "reset_after_fork", "signals", "crumbs",
    "started",
)  # fmt: skip


def expand(text: str) -> str:
    """Expand the macros of this file's text into LLVM IR.

    getp/geti %x %base FIELD and putp/puti %base FIELD %x load and store a word of a frame or
    descriptor; slot %x %i and setslot %i %x read and write a slot; words, goto, case as above.
    """
    lines: list[str] = []
    case = ""
    fresh = 0

    def address(kind: str, base: str, index: str) -> str:
        nonlocal fresh
        fresh += 1
        lines.append(f"  %at{fresh} = getelementptr {kind}, ptr {base}, i64 {index}")
        return f"%at{fresh}"

    def number(field: str) -> str:
        return field if field.isdigit() else str(globals()[field])

    for raw in text.splitlines():
        line = re.sub(r"%\.(\w)", rf"%{case}.\1", raw)
        match line.split():
            case ["case", name]:
                case = name.lower()
                lines.append(f"case_{case}:")
            case ["words", *names]:
                for place, name in enumerate(names, 1):
                    at = address("i64", "%code", str(place))
                    lines.append(f"  %{case}.{name} = load i64, ptr {at}")
            case ["goto", words]:
                at = address("i64", "%code", words)
                lines.append(f"  store ptr {at}, ptr %code.v")
                lines.append("  br label %head")
            case ["getp" | "geti" as get, name, base, place]:
                kind = "ptr" if get == "getp" else "i64"
                lines.append(f"  {name} = load {kind}, ptr {address('i64', base, number(place))}")
            case ["putp" | "puti" as put, base, place, name]:
                kind = "ptr" if put == "putp" else "i64"
                lines.append(f"  store {kind} {name}, ptr {address('i64', base, number(place))}")
            case ["slot", name, index]:
                lines.append(f"  {name} = load ptr, ptr {address('ptr', '%slots', index)}")
            case ["setslot", index, name]:
                lines.append(f"  store ptr {name}, ptr {address('ptr', '%slots', index)}")
            case _:
                lines.append(line)
    return "\n".join(lines)


def fill(text: str, **values: object) -> str:
    """Put values at `{name}`; other braces are LLVM's own."""
    for name, value in values.items():
        text = text.replace("{" + name + "}", str(value))
    return text


def native_ir(machine: str, *, pool: bool, sigint: bool) -> str:
    """The module for one machine (x86_64, aarch64); without a pool SPREAD runs its chunks in turn.

    `pool` needs Linux (futex) and a machine of `PAUSE`; `sigint` needs POSIX sigaction.
    """
    cases = "\n".join(f"    i64 {op.value}, label %case_{op.name.lower()}" for op in Opcode)
    walk = fill(
        WALK,
        cases=cases,
        rest="store atomic i32 0, ptr @spin_allowed monotonic, align 4",
        ENDED=ENDED,
        RETURNED=RETURNED,
        POLLED=POLLED,
        CRUMB_BYTES=CRUMB_BYTES,
        LAST_CRUMB=CRUMBS - 1,
    )
    parts = [HEADER, walk]
    if sigint:
        parts.append(SIGINT)
    parts.append(fill(ENTER_WATCHED, watch="call void @watch_sigint()" if sigint else ""))
    if pool:
        declare_pause, pause = PAUSE[machine]
        blocked = (1 << 64) - 1
        for signal in FAULTS:
            blocked &= ~(1 << (signal - 1))
        parts.append(
            fill(
                POOL,
                declare_pause=declare_pause,
                pause=pause,
                futex=FUTEX[machine],
                SPINS=SPINS,
                blocked=blocked - (1 << 64),
            )
        )
    else:
        parts.append(NO_POOL)
    return expand("\n".join(parts))
