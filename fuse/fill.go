package fuse

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	raw "github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/worktree"
)

// filler stores the contents of files in the kernel's page cache for a program that searches all files below a
// directory (rg, grep -r). The program then reads these files without a request. A READ for each file would take
// several times as long, because each one switches between processes twice. The filler starts when the program lists
// the directory, and continues as contents arrive.
//
// A notice that stores pages also overwrites pages that a program has changed in a mapping, about which the kernel
// sends no request. So contents are stored only for files that no program can have opened: the kernel has no look-up of
// them (worktree.Kernel.Unknown). But the kernel accepts pages only for nodes that it knows. Therefore a thread of this
// process, the helper, lists the files of a batch in a directory that no other thread can enter. Then the contents are
// stored. In the meantime, look-ups in the directories of the batch wait, so no other name leads to the files.
//
// The helper waits for replies of its own process, so it runs under WithoutDevice. It never looks up a name in a
// directory of a batch: such a look-up could wait for a program that lists the directory, and that program waits for
// the helper. So the files of the root, which contains Options.Hidden, are not stored.
//
// The kernel keeps the entries of the helper's directory, and with them the nodes of the files. So the entries are
// dropped when the program has ended, or some seconds after the last batch. Otherwise the overlay would keep the
// contents of removed files.
type filler struct {
	fs     *fileSystem
	show   func(*raw.EntryOut, worktree.Attr) // writable.fillEntry, which fills the reply for an entry
	dir    string                             // path of the directory fillTop
	helper atomic.Uint32                      // id of the helper's thread; 0 while none runs
	// id of the thread that was the last to list a directory and is not part of a search program; 0: none
	idle   atomic.Uint32
	failed atomic.Bool // the helper could not list a batch in time, so no further files are stored

	mu      sync.Mutex
	seen    map[worktree.Node]bool // directories for which fill was started already
	running bool                   // true while fill runs
	// directories of the batch in progress, whose look-ups wait; the value is that batch
	filling map[worktree.Node]*batch
	batch   *batch // the batch in progress, or nil
	// number of requests in progress after which the kernel may know names of the directory; by directory
	busy map[worktree.Node]int
	// number of look-ups by file handle in progress; after such a look-up the kernel may know any node
	handles int
	count   uint64 // number of batches so far
}

// batch is a set of files whose contents are stored together.
type batch struct {
	number uint64
	dirs   []worktree.Node
	files  []worktree.Attr
	listed chan error    // receives one value when the helper has listed the files; has a buffer
	done   chan struct{} // closed when look-ups in the directories of the batch may continue
}

const (
	fillName  = "fill"             // name of the directory that contains the helper's directories, in Options.Hidden
	fillTop   = hiddenNode + 1<<48 // node of the directory with the name fillName
	firstFill = fillTop + 1        // node of the helper's directory for batch 0
	fillMost  = maxRequest         // size in bytes above which a file is not stored, because its READs are large enough
	fillBatch = 400                // number of files after which a batch is stored
	fillWait  = time.Second        // how long the filler waits for the helper
	fillKept  = 5 * time.Second    // longest time for which the entries of the helper are kept after the last batch
	fillPoll  = 10 * time.Millisecond
	// how long the filler waits for contents; contents that arrive later are read by requests of the program
	fillTime  = 2 * time.Minute
	fillLimit = 1 << 30 // number of bytes that are stored for one search
)

// newFiller returns the filler of the mount at dir. hidden is the name of the hidden directory in the root of the
// mount.
func newFiller(f *writable, dir, hidden string) *filler {
	return &filler{
		fs: f.fileSystem, show: f.fillEntry, dir: filepath.Join(dir, hidden, fillName),
		seen: map[worktree.Node]bool{}, filling: map[worktree.Node]*batch{}, busy: map[worktree.Node]int{},
	}
}

// enter waits while files of the directory are being stored, and keeps new ones from being stored until the returned
// function is called. It is called for each request after which the kernel may know names of the directory.
func (f *filler) enter(dir worktree.Node) (leave func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for b := f.filling[dir]; b != nil; b = f.filling[dir] {
		f.await(b)
	}
	f.busy[dir]++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.busy[dir]--; f.busy[dir] == 0 {
			delete(f.busy, dir)
		}
	}
}

// enterAny waits while files of any directory are being stored, and keeps new ones from being stored until the returned
// function is called.
func (f *filler) enterAny() (leave func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.batch != nil {
		f.await(f.batch)
	}
	f.handles++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.handles--
	}
}

// await waits for the end of a batch. The caller holds f.mu, which await releases meanwhile.
func (f *filler) await(b *batch) {
	f.mu.Unlock()
	<-b.done
	f.mu.Lock()
}

// noteListing starts the filler if a process lists a directory for the first time, and is expected to read all files
// below it. Later searches find the contents in the page cache.
func (f *filler) noteListing(w *waiter, dir worktree.Node) {
	if dir.Own() || w.pid == 0 || f.idle.Load() == w.pid || f.failed.Load() {
		return
	}
	f.mu.Lock()
	known := f.seen[dir] || f.running
	f.mu.Unlock()
	if known {
		return
	}
	target, ok := f.fs.tree.Kernel().Searched(w, dir)
	if !ok {
		f.idle.Store(w.pid)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if target && !f.running && !f.seen[dir] {
		f.running, f.seen[dir] = true, true
		go f.fill(dir, w.pid)
	}
}

// fill stores the contents of the files below a directory, in the order of the tree, until the thread pid of the
// program ends.
func (f *filler) fill(top worktree.Node, pid uint32) {
	jobs := make(chan *batch)
	defer func() {
		close(jobs)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.running = false
	}()
	go f.help(jobs)
	walk := fillWalk{filler: f, jobs: jobs, caller: proc.Of(int(pid)), deadline: time.Now().Add(fillTime),
		buf: make([]byte, fillMost)}
	if walk.directory(top) {
		walk.flush()
	}
	go walk.dropAfterwards()
}

// fillWalk is the state of filler.fill.
type fillWalk struct {
	*filler
	jobs     chan *batch
	caller   proc.Process // the thread that has listed the directory
	deadline time.Time
	buf      []byte
	bytes    int      // number of bytes stored so far
	next     batch    // files that will be stored next
	stored   []uint64 // numbers of the batches whose entries have not been dropped yet
}

// directory stores the contents of the files below a directory, or adds them to the next batch. It returns false if the
// walk must end.
func (w *fillWalk) directory(dir worktree.Node) bool {
	ctx, kernel := context.Background(), w.fs.tree.Kernel()
	files, subs, missing := kernel.Unknown(ctx, dir, fillMost)
	for ; missing > 0 && kernel.Arriving() && time.Now().Before(w.deadline); files, subs, missing = kernel.Unknown(ctx,
		dir, fillMost) {
		if !w.flush() || !w.alive() {
			return false
		}
		time.Sleep(fillPoll)
	}
	if missing == 0 {
		w.mu.Lock()
		w.seen[dir] = true
		w.mu.Unlock()
	}
	if len(files) > 0 && dir != worktree.Root {
		w.next.dirs, w.next.files = append(w.next.dirs, dir), append(w.next.files, files...)
	}
	if len(w.next.files) >= fillBatch && (!w.flush() || !w.alive() || w.bytes >= fillLimit) {
		return false
	}
	for _, sub := range subs {
		if !w.directory(sub) {
			return false
		}
	}
	return true
}

// dropAfterwards drops the entries that the helper has listed, when the program has ended or the time fillKept has
// passed. If the entries were dropped earlier, the kernel would forget the files that the program has not looked up
// yet, with their pages.
func (w *fillWalk) dropAfterwards() {
	for end := time.Now().Add(fillKept); w.alive() && time.Now().Before(end); {
		time.Sleep(10 * fillPoll)
	}
	w.drop(w.stored)
}

// alive reports whether the program may still read files.
func (w *fillWalk) alive() bool {
	select {
	case <-w.fs.gone:
		return false
	default:
	}
	_, err := w.caller.Name()
	return err == nil
}

// flush stores the contents of the next batch. It returns false if the helper has failed.
func (w *fillWalk) flush() bool {
	if len(w.next.files) == 0 {
		return true
	}
	b := &batch{dirs: w.next.dirs, files: w.next.files, listed: make(chan error, 1), done: make(chan struct{})}
	w.next = batch{}
	if !w.begin(b) {
		return true // no file is left, because the program has just listed their directories itself
	}
	defer w.end(b)
	late := time.NewTimer(fillWait)
	defer late.Stop()
	select {
	case w.jobs <- b:
	case <-late.C:
		return w.fail(errFillLate)
	}
	select {
	case err := <-b.listed:
		if err != nil {
			return w.fail(err)
		}
	case <-late.C:
		return w.fail(errFillLate)
	}
	w.stored = append(w.stored, b.number)
	for _, a := range b.files {
		n, err := w.fs.tree.Read(context.Background(), a.Node, w.buf, 0)
		if err != nil || int64(n) != a.Size { // the program gets the error from its own READ of the file
			continue
		}
		// The notice fails with ENOENT if the helper has not listed the file.
		if w.fs.server.InodeNotifyStoreCache(uint64(a.Node), 0, w.buf[:n]) == raw.OK {
			w.bytes += n
		}
	}
	return true
}

// begin makes requests for the directories of a batch wait. It removes from the batch the directories for which
// requests are in progress, and files that the kernel has looked up since. It returns false if no files are left.
func (f *filler) begin(b *batch) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.handles > 0 {
		return false
	}
	for _, dir := range b.dirs {
		if f.busy[dir] == 0 {
			f.filling[dir] = b
		}
	}
	b.files = slices.DeleteFunc(b.files,
		func(a worktree.Attr) bool { return !f.fs.tree.Kernel().IsUnknown(a.Node, f.isFilling) })
	f.count++
	f.batch, b.number = b, f.count
	if len(b.files) == 0 {
		f.endLocked(b)
		return false
	}
	return true
}

// isFilling reports whether requests for a directory must wait because its files are being stored. The caller holds
// f.mu.
func (f *filler) isFilling(dir worktree.Node) bool { return f.filling[dir] != nil }

// end lets requests for the directories of a batch continue.
func (f *filler) end(b *batch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endLocked(b)
}

// endLocked is end for a caller that holds f.mu.
func (f *filler) endLocked(b *batch) {
	f.batch = nil
	clear(f.filling)
	close(b.done)
}

// errFillLate means that the helper did not list the files of a batch within fillWait.
var errFillLate = errors.New("listing of a batch of files did not end in time")

// fail stops the filler for the rest of the mount, and returns false. One cause is that the mount is in another mount
// namespace, where the helper cannot reach it.
func (f *filler) fail(why error) bool {
	if !f.failed.Swap(true) {
		f.fs.log.Warn("contents are no longer stored ahead of searches", zap.Error(why))
	}
	return false
}

// help runs on the helper's thread. It lists the batches that it receives from the channel, until the channel is
// closed.
func (f *filler) help(jobs <-chan *batch) {
	err := WithoutDevice(func() error {
		thread := uint32(unix.Gettid())
		f.helper.Store(thread)
		defer f.helper.CompareAndSwap(thread, 0) // the helper of the next search may have set its own thread already
		names := make([]byte, 64<<10)
		for b := range jobs {
			b.listed <- f.listFiles(b, names)
		}
		return nil
	})
	if err != nil {
		f.fs.log.Warn("store contents ahead of a search", zap.Error(err))
	}
}

// listFiles lists the files of a batch in the helper's directory, by getdents64(2). names is the buffer for the
// entries.
func (f *filler) listFiles(b *batch, names []byte) error {
	path := filepath.Join(f.dir, strconv.FormatUint(b.number, 10))
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	for count := len(b.files); count > 0; {
		n, err := unix.Getdents(fd, names)
		if n <= 0 || err != nil {
			return os.NewSyscallError("getdents", err)
		}
		// offset of linux_dirent64.d_reclen, the size of the entry
		for at := 0; at < n; at += int(binary.NativeEndian.Uint16(names[at+16:])) {
			count--
		}
	}
	return nil
}

// drop makes the kernel drop the entries that the helper has listed for the batches.
func (f *filler) drop(batches []uint64) {
	f.fs.device.notifyKernel(func() raw.Status {
		for _, n := range batches {
			f.fs.server.EntryNotify(fillTop, strconv.FormatUint(n, 10)) // fails after the mount has ended
		}
		return raw.OK
	})
}

// lookup returns the node of a name in one of the filler's directories, and false if the thread may not enter it.
func (f *filler) lookup(pid uint32, parent uint64, name string) (node uint64, ok bool) {
	if pid == 0 || pid != f.helper.Load() {
		return 0, false
	}
	if parent == hiddenNode {
		return fillTop, true
	}
	n, err := strconv.ParseUint(name, 10, 47)
	return firstFill + n, parent == fillTop && err == nil
}

// listPlus answers the helper's listing of its directory.
func (f *filler) listPlus(in *raw.ReadIn, out *raw.DirEntryList) raw.Status {
	f.mu.Lock()
	b := f.batch
	f.mu.Unlock()
	if in.Pid != f.helper.Load() || b == nil || in.NodeId != firstFill+b.number {
		return raw.OK
	}
	for i := in.Offset; i < uint64(len(b.files)); i++ {
		a := b.files[i]
		entry := out.AddDirLookupEntry(raw.DirEntry{Name: strconv.FormatUint(i, 10), Ino: uint64(a.Node),
			Mode: a.Mode, Off: i + 1})
		if entry == nil {
			break
		}
		f.show(entry, a)
	}
	return raw.OK
}

// isFill reports whether a node is one of the filler's directories.
func isFill(node uint64) bool { return node >= fillTop && node < firstFile }
