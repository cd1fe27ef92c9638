package places

import "sync"

// processes is the number of git processes of one request that run at the same time: upload-pack and pack-objects,
// receive-pack and index-pack, two merges. Each can allocate this part of the memory of the place.
const processes = 2

const (
	least     = 64 << 20 // memory of a process below which none is started, if the machine has enough
	mostEach  = 2 << 30  // largest limit of one process
	reserved  = 8        // a class always has this part of the memory
	firstPart = 4        // part of the free memory that the first request gets
)

// Class is a kind of work whose git processes share memory. Each class has some memory that the others leave to it.
type Class int

// The classes of work.
const (
	Transfers  Class = iota // clones, fetches, pushes
	Reads                   // requests to the REST API and the page
	Background              // imports and upkeep
	Downloads               // large files that clients receive slowly
	classes
)

// Size is the memory that a request needs.
type Size int

const (
	Small Size = iota // lists of refs
	Large             // anything whose need depends on the repository
)

// Memory is the memory that all git processes of a server together can allocate. A request gets a part of what is free:
// large if the server is idle, smaller if many requests run, and it waits if there is too little. So the sum never
// exceeds the whole.
//
// Locks: mu is a leaf.
type Memory struct {
	total int64
	each  int64 // largest limit of one process
	least int64 // least memory of a request
	floor int64 // memory that a class always has

	mu     sync.Mutex
	used   [classes]int64
	kept   int64 // of idle processes
	listen []func()
}

// NewMemory returns memory of a number of bytes. each limits that of a single process; 0: 2 GiB.
func NewMemory(total, each int64) *Memory {
	if each <= 0 {
		each = mostEach
	}
	m := &Memory{total: total, each: each}
	m.least = min(processes*min(least, each), total/int64(classes))
	m.floor = max(total/reserved, m.least)
	return m
}

// Total returns the whole memory in bytes.
func (m *Memory) Total() int64 { return m.total }

// Least returns the least memory that a process of a request can allocate.
func (m *Memory) Least() int64 { return m.least / processes }

// Used returns the memory that is given to requests and idle processes.
func (m *Memory) Used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := m.kept
	for _, n := range m.used {
		sum += n
	}
	return sum
}

// free returns what a class can take. The caller holds mu.
func (m *Memory) free(c Class) int64 {
	left := m.total - m.kept
	for other, n := range m.used {
		if Class(other) != c {
			n = max(n, m.floor)
		}
		left -= n
	}
	return left
}

// ofClass returns the memory that a class can have while the others have theirs.
func (m *Memory) ofClass() int64 { return m.total - int64(classes-1)*m.floor }

// take returns the memory for a request, of which room is the most that its shares allow and others the number of
// requests of the same places; 0 if there is too little.
func (m *Memory) take(c Class, s Size, room int64, others int) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	free := min(m.free(c), room)
	if free < m.least {
		return 0
	}
	n := m.least
	if s == Large {
		n = min(max(free/int64(firstPart+others), n), processes*m.each)
	}
	n -= n % processes
	m.used[c] += n
	return n
}

func (m *Memory) release(c Class, n int64) {
	m.mu.Lock()
	m.used[c] -= n
	m.mu.Unlock()
	m.notifyReleased()
}

// notifyReleased calls the functions of onRelease.
func (m *Memory) notifyReleased() {
	m.mu.Lock()
	list := m.listen
	m.mu.Unlock()
	for _, f := range list {
		f()
	}
}

// onRelease calls a function whenever memory becomes free. It does nothing for a nil *Memory.
func (m *Memory) onRelease(f func()) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listen = append(m.listen, f)
}

// Keep takes memory for an idle process that a later request may use, while more than half of the memory is free for
// others. A nil *Memory has no limit.
func (m *Memory) Keep(n int64) (release func(), ok bool) {
	if m == nil {
		return func() {}, true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.free(Reads)-n < m.total/2 {
		return nil, false
	}
	m.kept += n
	return sync.OnceFunc(func() {
		m.mu.Lock()
		m.kept -= n
		m.mu.Unlock()
		m.notifyReleased()
	}), true
}
