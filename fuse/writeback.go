package fuse

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/worktree"
)

// errCovered means that another file system is mounted over the mount, so the mount cannot be reached by its path.
var errCovered = errors.New("another file system covers the mount")

// WriteBack returns when the tree has received all data that programs had written into the kernel's cache before the
// call. It must not be called while answering a request. If ctx ends, WriteBack returns its cause, and the kernel
// continues to write back.
//
// All files are written back, since the kernel does not report writes through mappings. syncfs(2) visits only the files
// with dirty pages. It sends their pages, but does not wait for the replies (fs/fs-writeback.c, wait_sb_inodes skips
// FUSE). This process reads requests in the order in which the kernel sent them. So once a request that was made after
// syncfs(2) arrives, the WRITEs have arrived too, except those that the kernel holds back because too many are in
// flight. If too many were in flight, WriteBack starts again.
func (s *Server) WriteBack(ctx context.Context) error {
	if s.redirects == nil {
		return nil // a read-only mount has no writes
	}
	if nodes := s.fs.tree.Monitor().Writers(); len(nodes) <= maxRefreshNow {
		s.Refresh(nodes)
	} else {
		defer s.refreshInBackground(nodes)
	}
	for {
		if err := s.sendAll(ctx); err != nil {
			return fmt.Errorf("write back cached pages of %s: %w", s.dir, err)
		}
		many := s.fs.ops.pending.Load() >= maxBackground/2
		if err := s.writes.wait(ctx); err != nil {
			return fmt.Errorf("write back cached pages of %s: %w", s.dir, err)
		}
		if !many {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("write back cached pages of %s: %w", s.dir, context.Cause(ctx))
		case <-time.After(heldBack):
		}
	}
}

// refreshInBackground calls Refresh in the background. WriteBack uses it if Refresh would take long because of the
// number of files; nearly all of these files have been closed. The kernel does not report a write to a file that is not
// refreshed yet, so refreshInBackground writes all files back once more after Refresh. If an earlier call still works
// in the background, refreshInBackground instead waits for its own Refresh.
func (s *Server) refreshInBackground(nodes []worktree.Node) {
	if !s.refreshing.CompareAndSwap(false, true) {
		s.Refresh(nodes)
		return
	}
	go func() {
		defer s.refreshing.Store(false)
		s.Refresh(nodes)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.sendAll(ctx); err != nil {
			s.fs.log.Info("write back cached pages in the background", zap.String("dir", s.dir), zap.Error(err))
		}
	}()
}

// maxRefreshNow is the maximum number of files for which WriteBack waits for Refresh. For more files, Refresh runs in
// the background.
const maxRefreshNow = 500

// heldBack is the pause before WriteBack starts again because the kernel may have held requests back.
const heldBack = 10 * time.Millisecond

// sendAll makes the kernel send all dirty pages and returns when their WRITEs have arrived. Only one thread at a time
// calls syncfs(2), so that at most one can hang. If ctx ends, sendAll returns and the thread continues.
func (s *Server) sendAll(ctx context.Context) error {
	select {
	case s.sending <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	done := make(chan error, 1)
	go func() {
		err := WithoutDevice(s.syncfs)
		<-s.sending
		done <- err
	}()
	select {
	case err := <-done:
		if errors.Is(err, errCovered) {
			select {
			case <-s.ended: // the mount has just been unmounted; before that, the kernel has sent all pages
				return nil
			case <-time.After(time.Second): // maximum time from the unmount in the kernel to the last reply of this process
			}
		}
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// syncfs makes the kernel write back the mount. Then it calls statfs(2) and stat(2), whose requests arrive after the
// WRITEs. It returns errCovered if another file system is mounted over this mount, or if it was unmounted.
func (s *Server) syncfs() error {
	fd, err := unix.Open(s.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return err
	}
	if st.Type != unix.FUSE_SUPER_MAGIC {
		return errCovered
	}
	if _, err := retryEINTR(func() (int, error) { return 0, unix.Syncfs(fd) }); err != nil {
		return err
	}
	if err := unix.Fstatfs(fd, &st); err != nil { // this call sends a STATFS, which arrives after the WRITEs
		return err
	}
	var root unix.Stat_t
	if err := unix.Fstat(fd, &root); err != nil {
		return err
	}
	// package os may use files of the process, such as a file to which the test framework logs opened files
	_ = WithAllFiles(func() error {
		s.settle(fmt.Sprintf("/sys/fs/fuse/connections/%d/waiting", unix.Minor(root.Dev)))
		return nil
	})
	return nil
}

// Several threads read requests. When a request is answered, another thread may have read an earlier request without
// having begun to handle it. settleTime is the maximum time to wait until that thread has begun, settleLook is the
// interval of the checks, and settleBlind is the time to wait if the number of requests cannot be read.
const (
	settleTime  = 20 * time.Millisecond
	settleLook  = 50 * time.Microsecond
	settleBlind = 2 * time.Millisecond
)

// settle waits until every request that the kernel has sent is counted in ops.pending. waiting is the path of the file
// that contains the number of requests without a reply (fs/fuse/control.c); the file exists if fusectl is mounted. In a
// mount with a constant stream of requests settle may wait for the whole settleTime.
func (s *Server) settle(waiting string) {
	for until := time.Now().Add(settleTime); time.Now().Before(until); time.Sleep(settleLook) {
		before := s.fs.ops.pending.Load()
		text, err := os.ReadFile(waiting)
		n, bad := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil || bad != nil {
			time.Sleep(settleBlind)
			return
		}
		if n <= min(before, s.fs.ops.pending.Load()) {
			return
		}
	}
}

// writing counts the WRITEs in progress, so that WriteBack can wait for the WRITEs that began before a certain moment.
type writing struct {
	mu      sync.Mutex
	round   uint64         // number of the current round; each call of wait starts a new round
	inRound map[uint64]int // number of WRITEs in progress, by the round in which they began
	ended   chan struct{}  // closed when the last WRITE of any round ends; nil if no call of wait needs the channel
}

// begin records that a WRITE begins. The caller must pass the result to end.
func (w *writing) begin() (round uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.inRound == nil {
		w.inRound = make(map[uint64]int)
	}
	w.inRound[w.round]++
	return w.round
}

// end records that a WRITE of a round has ended. If it was the last WRITE of the round, end wakes the callers of wait.
func (w *writing) end(round uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.inRound[round]--; w.inRound[round] > 0 {
		return
	}
	delete(w.inRound, round)
	if w.ended != nil {
		close(w.ended)
		w.ended = nil
	}
}

// wait returns when all WRITEs that began before the call have ended. If ctx ends first, wait returns its cause.
func (w *writing) wait(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.round++
	for until := w.round; w.before(until); {
		if w.ended == nil {
			w.ended = make(chan struct{})
		}
		ended := w.ended
		w.mu.Unlock()
		select {
		case <-ended:
			w.mu.Lock()
		case <-ctx.Done():
			w.mu.Lock()
			return context.Cause(ctx)
		}
	}
	return nil
}

// The method before reports whether a WRITE is in progress that began in an earlier round than the given round. The
// caller must hold mu.
func (w *writing) before(round uint64) bool {
	for r := range w.inRound {
		if r < round {
			return true
		}
	}
	return false
}
