"""The LLVM text of the functions on shadow memory, with the names of words in capitals (see `codegen.shadow`).

`P` stands for the type of a pointer, and `SCOPE` for the scope of atomics.
"""

from __future__ import annotations

FIND = """
define internal i64 @blocknb.shadow.find(P %context, i64 %address) nounwind alwaysinline {
entry:
  %count = load i64, P %context, !invariant.load !CONSTANT
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i.next, %next ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %test, label %none
test:
  %distance = mul i64 %i, 5
  %word = add i64 %distance, FIRST_REGION
  %p0 = getelementptr i64, P %context, i64 %word
  %lower = load i64, P %p0, !invariant.load !CONSTANT
  %p1 = getelementptr i64, P %p0, i64 1
  %bytes = load i64, P %p1, !invariant.load !CONSTANT
  %offset = sub i64 %address, %lower
  %inside = icmp ult i64 %offset, %bytes
  br i1 %inside, label %hit, label %next
next:
  %i.next = add i64 %i, 1
  br label %loop
hit:
  ret i64 %word
none:
  ret i64 0
}
"""

RECORD_TEXT = """
define internal void @blocknb.shadow.record(P %context, i64 %address, i64 %mine, i64 %other, i64 %what) noinline nounwind cold {
entry:
  %counter = getelementptr i64, P %context, i64 COUNT
  %seen = load atomic i64, P %counter monotonic, align 8
  %room = icmp ult i64 %seen, RECORDS
  br i1 %room, label %take, label %done
take:
  %number = atomicrmw add P %counter, i64 1 SCOPE monotonic
  %fits = icmp ult i64 %number, RECORDS
  br i1 %fits, label %write, label %done
write:
  %distance = mul i64 %number, 4
  %word = add i64 %distance, FIRST_RECORD
  %p0 = getelementptr i64, P %context, i64 %word
  store i64 %address, P %p0
  %p1 = getelementptr i64, P %p0, i64 1
  store i64 %mine, P %p1
  %p2 = getelementptr i64, P %p0, i64 2
  store i64 %other, P %p2
  %p3 = getelementptr i64, P %p0, i64 3
  store i64 %what, P %p3
  br label %done
done:
  ret void
}
"""

#: Notes an action without clocks. `%key` is program << bits | site, plus one; `%plane` the number of the action. Most cells are empty at a
#: store and hold the program's own key at a load, so only a load looks before it swaps.
MARK = """
define internal void @blocknb.shadow.mark(P %context, i64 %address, i64 %size, i64 %plane, i64 %key, i1 %on) INLINING nounwind {
entry:
  br i1 %on, label %find, label %done
find:
  %word = call i64 @blocknb.shadow.find(P %context, i64 %address)
  %known = icmp ne i64 %word, 0
  br i1 %known, label %hit, label %done
hit:
  %p0 = getelementptr i64, P %context, i64 %word
  %lower = load i64, P %p0, !invariant.load !CONSTANT
  %p2 = getelementptr i64, P %p0, i64 2
  %shift = load i64, P %p2, !invariant.load !CONSTANT
  %p3 = getelementptr i64, P %p0, i64 3
  %base = load i64, P %p3, !invariant.load !CONSTANT
  %plane.word = add i64 %plane, PLANES
  %plane.place = getelementptr i64, P %context, i64 %plane.word
  %cells = load i64, P %plane.place, !invariant.load !CONSTANT
  %offset = sub i64 %address, %lower
  %end.1 = add i64 %offset, %size
  %end = sub i64 %end.1, 1
  %first.1 = lshr i64 %offset, %shift
  %first = add i64 %first.1, %base
  %last.1 = lshr i64 %end, %shift
  %last = add i64 %last.1, %base
  %high.key = shl i64 %key, 32
  %low.key = sub i64 4294967295, %key
  %is.store = icmp eq i64 %plane, 0
  br label %cell
cell:
  %c = phi i64 [ %first, %hit ], [ %c.next, %noted ]
  %distance = shl i64 %c, 3
  %place = add i64 %cells, %distance
  %p = inttoptr i64 %place to P
  br i1 %is.store, label %again, label %look
look:
  %before = load atomic i64, P %p SCOPE monotonic, align 8
  br label %again
again:
  %old = phi i64 [ 0, %cell ], [ %before, %look ], [ %found, %swap ]
  %old.low = and i64 %old, 4294967295
  %old.high = and i64 %old, -4294967296
  %lower.high = icmp ult i64 %old.high, %high.key
  %high = select i1 %lower.high, i64 %high.key, i64 %old.high
  %lower.low = icmp ult i64 %old.low, %low.key
  %low = select i1 %lower.low, i64 %low.key, i64 %old.low
  %new = or i64 %high, %low
  %same = icmp eq i64 %new, %old
  br i1 %same, label %noted, label %swap
swap:
  %pair = cmpxchg P %p, i64 %old, i64 %new SCOPE monotonic monotonic
  %found = extractvalue { i64, i1 } %pair, 0
  %done.now = extractvalue { i64, i1 } %pair, 1
  br i1 %done.now, label %changed, label %again
changed:
  br i1 %is.store, label %compare, label %noted
compare:
  %bits.place = getelementptr i64, P %context, i64 BITS
  %bits = load i64, P %bits.place, !invariant.load !CONSTANT
  %most.1 = lshr i64 %high, 32
  %most.2 = sub i64 %most.1, 1
  %most = lshr i64 %most.2, %bits
  %least.1 = sub i64 4294967294, %low
  %least = lshr i64 %least.1, %bits
  %alone = icmp eq i64 %most, %least
  br i1 %alone, label %noted, label %tell
tell:
  %told = getelementptr i64, P %context, i64 RACE_FOUND
  store atomic i64 1, P %told SCOPE monotonic, align 8
  br label %noted
noted:
  %c.next = add i64 %c, 1
  %more = icmp ule i64 %c.next, %last
  br i1 %more, label %cell, label %done
done:
  ret void
}
"""

#: Notes an action with clocks and compares it with those of other programs. An entry is clock << SITE_BITS | site.
CHECK = """
define internal void @blocknb.shadow.check(P %context, i64 %address, i64 %size, i64 %action, i64 %program, i64 %site,
  i1 %on) noinline nounwind {
entry:
  br i1 %on, label %find, label %done
find:
  %word = call i64 @blocknb.shadow.find(P %context, i64 %address)
  %known = icmp ne i64 %word, 0
  br i1 %known, label %hit, label %done
hit:
  %p0 = getelementptr i64, P %context, i64 %word
  %lower = load i64, P %p0, !invariant.load !CONSTANT
  %p2 = getelementptr i64, P %p0, i64 2
  %shift = load i64, P %p2, !invariant.load !CONSTANT
  %p3 = getelementptr i64, P %p0, i64 3
  %base = load i64, P %p3, !invariant.load !CONSTANT
  %offset = sub i64 %address, %lower
  %end.1 = add i64 %offset, %size
  %end = sub i64 %end.1, 1
  %first.1 = lshr i64 %offset, %shift
  %first = add i64 %first.1, %base
  %last.1 = lshr i64 %end, %shift
  %last = add i64 %last.1, %base
  %programs.place = getelementptr i64, P %context, i64 PROGRAMS
  %programs = load i64, P %programs.place
  %cells.place = getelementptr i64, P %context, i64 CELLS
  %cells = load i64, P %cells.place, !invariant.load !CONSTANT
  %clocks.place = getelementptr i64, P %context, i64 CLOCKS
  %clocks.1 = load i64, P %clocks.place
  %row.bytes = shl i64 %programs, 2
  %row.offset = mul i64 %program, %row.bytes
  %clocks = add i64 %clocks.1, %row.offset
  %own.offset = shl i64 %program, 2
  %own.address = add i64 %clocks, %own.offset
  %own = inttoptr i64 %own.address to P
  %clock.32 = load atomic i32, P %own SCOPE monotonic, align 4
  %clock = zext i32 %clock.32 to i64
  %entry.high = shl i64 %clock, SITE_BITS
  %entry.64 = or i64 %entry.high, %site
  %entry.32 = trunc i64 %entry.64 to i32
  %program.1 = add i64 %program, 1
  %program.high = shl i64 %program.1, 32
  %mine = or i64 %program.high, %entry.64
  %stores.place = getelementptr i64, P %context, i64 PLANES
  %stores = load i64, P %stores.place
  %is.store = icmp eq i64 %action, 0
  br label %cell
cell:
  %c = phi i64 [ %first, %hit ], [ %c.next, %next ]
  %store.offset = shl i64 %c, 3
  %store.address = add i64 %stores, %store.offset
  %store.cell = inttoptr i64 %store.address to P
  br i1 %is.store, label %write, label %note
write:
  %old.store = atomicrmw xchg P %store.cell, i64 %mine SCOPE monotonic
  fence SCOPE seq_cst
  br label %compare.store
note:
  %my.plane.word = add i64 %action, PLANES
  %my.plane.place = getelementptr i64, P %context, i64 %my.plane.word
  %my.plane = load i64, P %my.plane.place
  %my.row = mul i64 %program, %cells
  %my.cell.1 = add i64 %my.row, %c
  %my.cell.2 = shl i64 %my.cell.1, 2
  %my.address = add i64 %my.plane, %my.cell.2
  %my.cell = inttoptr i64 %my.address to P
  store atomic i32 %entry.32, P %my.cell SCOPE monotonic, align 4
  fence SCOPE seq_cst
  %seen.store = load atomic i64, P %store.cell SCOPE monotonic, align 8
  br label %compare.store
compare.store:
  %last.store = phi i64 [ %old.store, %write ], [ %seen.store, %note ]
  %some = icmp ne i64 %last.store, 0
  br i1 %some, label %whose, label %planes
whose:
  %owner.1 = lshr i64 %last.store, 32
  %owner = sub i64 %owner.1, 1
  %other = icmp ne i64 %owner, %program
  br i1 %other, label %late, label %planes
late:
  %known.offset = shl i64 %owner, 2
  %known.address = add i64 %clocks, %known.offset
  %known.place = inttoptr i64 %known.address to P
  %known.32 = load atomic i32, P %known.place SCOPE monotonic, align 4
  %known.clock = zext i32 %known.32 to i64
  %entry.of.store = and i64 %last.store, 4294967295
  %clock.of.store = lshr i64 %entry.of.store, SITE_BITS
  %unordered = icmp ugt i64 %clock.of.store, %known.clock
  br i1 %unordered, label %race, label %planes
race:
  call void @blocknb.shadow.record(P %context, i64 %address, i64 %mine, i64 %last.store, i64 %action)
  br label %planes
planes:
  br label %plane
plane:
  %k = phi i64 [ 1, %planes ], [ %k.next, %plane.next ]
  %more.planes = icmp ule i64 %k, 3
  br i1 %more.planes, label %plane.test, label %next
plane.test:
  %table.bit.1 = mul i64 %action, 4
  %table.bit = add i64 %table.bit.1, %k
  %table.bits = lshr i64 CONFLICTS, %table.bit
  %conflicts = trunc i64 %table.bits to i1
  %plane.word = add i64 %k, PLANES
  %plane.place = getelementptr i64, P %context, i64 %plane.word
  %plane.address = load i64, P %plane.place
  %present = icmp ne i64 %plane.address, 0
  %look = and i1 %conflicts, %present
  br i1 %look, label %rows, label %plane.next
rows:
  br label %row
row:
  %q = phi i64 [ 0, %rows ], [ %q.next, %row.next ]
  %more.rows = icmp ult i64 %q, %programs
  br i1 %more.rows, label %row.test, label %plane.next
row.test:
  %is.mine = icmp eq i64 %q, %program
  br i1 %is.mine, label %row.next, label %row.load
row.load:
  %their.row = mul i64 %q, %cells
  %their.cell.1 = add i64 %their.row, %c
  %their.cell.2 = shl i64 %their.cell.1, 2
  %their.address = add i64 %plane.address, %their.cell.2
  %their.cell = inttoptr i64 %their.address to P
  %their.32 = load atomic i32, P %their.cell SCOPE monotonic, align 4
  %their = zext i32 %their.32 to i64
  %their.clock = lshr i64 %their, SITE_BITS
  %q.offset = shl i64 %q, 2
  %q.address = add i64 %clocks, %q.offset
  %q.place = inttoptr i64 %q.address to P
  %q.known.32 = load atomic i32, P %q.place SCOPE monotonic, align 4
  %q.known = zext i32 %q.known.32 to i64
  %q.late = icmp ugt i64 %their.clock, %q.known
  br i1 %q.late, label %row.race, label %row.next
row.race:
  %q.1 = add i64 %q, 1
  %q.high = shl i64 %q.1, 32
  %theirs = or i64 %q.high, %their
  %kinds.1 = shl i64 %k, 8
  %kinds = or i64 %kinds.1, %action
  call void @blocknb.shadow.record(P %context, i64 %address, i64 %mine, i64 %theirs, i64 %kinds)
  br label %row.next
row.next:
  %q.next = add i64 %q, 1
  br label %row
plane.next:
  %k.next = add i64 %k, 1
  br label %plane
next:
  %c.next = add i64 %c, 1
  %more = icmp ule i64 %c.next, %last
  br i1 %more, label %cell, label %done
done:
  ret void
}
"""

#: Takes (%take) or releases the lock of the clocks. A launch that ends early, on a CPU, sets the word %stop.
LOCK_TEXT = """
define internal void @blocknb.shadow.lock(P %context, i1 %take, P %stop) noinline nounwind {
entry:
  %lock = getelementptr i64, P %context, i64 LOCK
  br i1 %take, label %again, label %release
again:
  %pair = cmpxchg P %lock, i64 0, i64 1 SCOPE acq_rel monotonic
  %taken = extractvalue { i64, i1 } %pair, 1
  br i1 %taken, label %done, label %wait
wait:
  %flag = load volatile i64, P %stop
  %stopped = icmp ne i64 %flag, 0
  br i1 %stopped, label %done, label %again
release:
  store atomic i64 0, P %lock SCOPE release, align 8
  br label %done
done:
  ret void
}
"""

#: Joins the clock of a program with that of an address, which the table KEYS and ROWS has.
JOIN = """
define internal void @blocknb.shadow.join(P %context, i64 %address, i64 %program, i1 %acquires, i1 %releases, i1 %on) noinline nounwind {
entry:
  br i1 %on, label %start, label %done
start:
  %keys.place = getelementptr i64, P %context, i64 KEYS
  %keys = load i64, P %keys.place
  %rows.place = getelementptr i64, P %context, i64 ROWS
  %rows = load i64, P %rows.place
  %slots.place = getelementptr i64, P %context, i64 SLOTS
  %slots = load i64, P %slots.place
  %programs.place = getelementptr i64, P %context, i64 PROGRAMS
  %programs = load i64, P %programs.place
  %clocks.place = getelementptr i64, P %context, i64 CLOCKS
  %clocks.1 = load i64, P %clocks.place
  %row.bytes = shl i64 %programs, 2
  %row.offset = mul i64 %program, %row.bytes
  %clocks = add i64 %clocks.1, %row.offset
  %hash.1 = mul i64 %address, -7046029254386353131
  %hash = lshr i64 %hash.1, 20
  %mask = sub i64 %slots, 1
  br label %probe
probe:
  %step = phi i64 [ 0, %start ], [ %step.next, %probe.next ]
  %full = icmp uge i64 %step, %slots
  br i1 %full, label %fault, label %look
look:
  %slot.1 = add i64 %hash, %step
  %slot = and i64 %slot.1, %mask
  %key.offset = shl i64 %slot, 3
  %key.address = add i64 %keys, %key.offset
  %key.place = inttoptr i64 %key.address to P
  %pair = cmpxchg P %key.place, i64 0, i64 %address SCOPE monotonic monotonic
  %old = extractvalue { i64, i1 } %pair, 0
  %free = icmp eq i64 %old, 0
  %mine = icmp eq i64 %old, %address
  %got = or i1 %free, %mine
  br i1 %got, label %found, label %probe.next
probe.next:
  %step.next = add i64 %step, 1
  br label %probe
fault:
  %fault.place = getelementptr i64, P %context, i64 FAULT
  store atomic i64 2, P %fault.place SCOPE monotonic, align 8
  br label %done
found:
  %slot.offset = mul i64 %slot, %row.bytes
  %row.address = add i64 %rows, %slot.offset
  br label %entry.loop
entry.loop:
  %q = phi i64 [ 0, %found ], [ %q.next, %entry.next ]
  %more = icmp ult i64 %q, %programs
  br i1 %more, label %publish.test, label %advance.test
publish.test:
  %q.offset = shl i64 %q, 2
  %mine.address = add i64 %clocks, %q.offset
  %mine.place = inttoptr i64 %mine.address to P
  %theirs.address = add i64 %row.address, %q.offset
  %theirs.place = inttoptr i64 %theirs.address to P
  %known = load atomic i32, P %mine.place SCOPE monotonic, align 4
  %stored = load atomic i32, P %theirs.place SCOPE monotonic, align 4
  %newer = icmp ugt i32 %known, %stored
  %publish = and i1 %newer, %releases
  br i1 %publish, label %publish.now, label %take.test
publish.now:
  %unused.1 = atomicrmw umax P %theirs.place, i32 %known SCOPE monotonic
  br label %take.test
take.test:
  %behind = icmp ult i32 %known, %stored
  %take = and i1 %behind, %acquires
  br i1 %take, label %take.now, label %entry.next
take.now:
  %unused.2 = atomicrmw umax P %mine.place, i32 %stored SCOPE monotonic
  br label %entry.next
entry.next:
  %q.next = add i64 %q, 1
  br label %entry.loop
advance.test:
  br i1 %releases, label %advance, label %done
advance:
  %own.offset = shl i64 %program, 2
  %own.address = add i64 %clocks, %own.offset
  %own = inttoptr i64 %own.address to P
  %before = atomicrmw add P %own, i32 1 SCOPE monotonic
  %late = icmp uge i32 %before, MOST_CLOCK
  br i1 %late, label %overflow, label %done
overflow:
  %overflow.place = getelementptr i64, P %context, i64 FAULT
  store atomic i64 1, P %overflow.place SCOPE monotonic, align 8
  br label %done
done:
  ret void
}
"""

#: The flags of `init`, a byte for each byte of an array: `read` tests them, `fill` sets them.
INIT = """
define internal void @blocknb.shadow.init(P %context, i64 %address, i64 %size, i64 %fills, i64 %program, i64 %site,
  i1 %on) noinline nounwind {
entry:
  br i1 %on, label %find, label %done
find:
  %word = call i64 @blocknb.shadow.find(P %context, i64 %address)
  %known = icmp ne i64 %word, 0
  br i1 %known, label %hit, label %done
hit:
  %p0 = getelementptr i64, P %context, i64 %word
  %lower = load i64, P %p0, !invariant.load !CONSTANT
  %p4 = getelementptr i64, P %p0, i64 4
  %flags = load i64, P %p4
  %registered = icmp ne i64 %flags, 0
  br i1 %registered, label %start, label %done
start:
  %offset = sub i64 %address, %lower
  %begin = add i64 %flags, %offset
  %fill = icmp ne i64 %fills, 0
  br label %byte
byte:
  %i = phi i64 [ 0, %start ], [ %i.next, %next ]
  %place = add i64 %begin, %i
  %p = inttoptr i64 %place to P
  br i1 %fill, label %set, label %test
set:
  store atomic i8 1, P %p SCOPE monotonic, align 1
  br label %next
test:
  %flag = load atomic i8, P %p SCOPE monotonic, align 1
  %empty = icmp eq i8 %flag, 0
  br i1 %empty, label %tell, label %next
tell:
  %program.1 = add i64 %program, 1
  %high = shl i64 %program.1, 32
  %mine = or i64 %high, %site
  call void @blocknb.shadow.record(P %context, i64 %address, i64 %mine, i64 0, i64 9)
  br label %done
next:
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %size
  br i1 %more, label %byte, label %done
done:
  ret void
}
"""
