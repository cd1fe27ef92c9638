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

// errCovered means that something else is mounted over the mount.
var errCovered = errors.New("something else is mounted there")

// WriteBack returns when the tree has all data that programs had written into the kernel's cache
// before the call. It must not be called while answering a request. If ctx ends it returns, and the
// kernel continues.
//
// The kernel reports writes only for some files (again after Refresh), and none for files that are
// mapped, so all files are written back: syncfs(2) visits only those with dirty pages. It sends
// these, and times, but does not wait for the replies (fs/fs-writeback.c, wait_sb_inodes leaves
// fuse out). Requests are read in the order in which they were sent, so the arrival of a request of
// our own shows that they have arrived, except for those that the kernel holds back because too
// many are in flight: then it is repeated.
func (s *Server) WriteBack(ctx context.Context) error {
	if s.redirects == nil {
		return nil // read-only: there are no writes
	}
	if nodes := s.fs.tree.Writers(); len(nodes) <= maxRefreshNow {
		s.Refresh(nodes)
	} else {
		defer s.refreshInBackground(nodes)
	}
	for {
		if err := s.sendAll(ctx); err != nil {
			return fmt.Errorf("write back %s: %w", s.dir, err)
		}
		many := s.fs.ops.pending.Load() >= maxBackground/2
		if err := s.writes.wait(ctx); err != nil {
			return fmt.Errorf("write back %s: %w", s.dir, err)
		}
		if !many {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("write back %s: %w", s.dir, context.Cause(ctx))
		case <-time.After(heldBack):
		}
	}
}

// refreshInBackground is Refresh for very many files, in the background: nearly all of them are closed. A
// write to one of them before its turn is not reported, so everything is written back once more at
// the end.
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
			s.fs.log.Info("write back behind the rest", zap.String("dir", s.dir), zap.Error(err))
		}
	}()
}

// maxRefreshNow is the number of files above which Refresh runs in the background.
const maxRefreshNow = 500

// heldBack is the pause before the next check whether the kernel still holds requests back.
const heldBack = 10 * time.Millisecond

// sendAll makes the kernel send all dirty pages, and waits until they have arrived. One thread at a
// time does so: if it hangs, no others do.
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
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// syncfs makes the kernel write back the mount, and then sends requests of its own, which follow
// the WRITEs. It returns errCovered if another file system is mounted over this one.
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
	if err := unix.Fstatfs(fd, &st); err != nil { // the request that follows them
		return err
	}
	var root unix.Stat_t
	if err := unix.Fstat(fd, &root); err != nil {
		return err
	}
	s.settle(fmt.Sprintf("/sys/fs/fuse/connections/%d/waiting", unix.Minor(root.Dev)))
	return nil
}

// A request that one thread has read before another thread read the request after it may not have
// been started when that one is answered. settleTime bounds the wait for it, settleLook is the
// interval of the checks, and settleBlind is the wait where nothing can be checked.
const (
	settleTime  = 20 * time.Millisecond
	settleLook  = 50 * time.Microsecond
	settleBlind = 2 * time.Millisecond
)

// settle waits until every request that the kernel has sent is in progress here. The file `waiting`
// shows how many there are (fs/fuse/control.c); it exists where fusectl is mounted. In a mount with
// a constant stream of requests this may take all of settleTime.
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

// writing counts the WRITEs that are being answered.
type writing struct {
	mu      sync.Mutex
	round   uint64         // current round; each call of wait starts another one
	inRound map[uint64]int // number of WRITEs that began in each round and are not answered
	ended   chan struct{}  // closed when the last WRITE of a round ends; nil: no call of wait
}

// begin records a WRITE; its result is for end.
func (w *writing) begin() (round uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.inRound == nil {
		w.inRound = make(map[uint64]int)
	}
	w.inRound[w.round]++
	return w.round
}

// end records that a WRITE of a round has been answered, and wakes wait if it was the last of its
// round.
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

// wait returns when the WRITEs that have begun are answered.
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

// before reports whether a WRITE of an earlier round is being answered. It needs mu.
func (w *writing) before(round uint64) bool {
	for r := range w.inRound {
		if r < round {
			return true
		}
	}
	return false
}
