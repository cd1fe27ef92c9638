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

// errElsewhere says that something else is mounted over the mount.
var errElsewhere = errors.New("something else is mounted there")

// WriteBack returns when what programs had written into the kernel's cache before the call is in the tree. It must not be
// called by who answers a request. When ctx ends it returns, and the kernel goes on.
//
// Only of some files does the kernel tell that they are written to (Refresh has it tell anew), and of those that are
// mapped of none: so all are written back. To do that syncfs(2) looks at those alone that have something to be written.
// It sends it, and times, but does not wait for the answers (fs/fs-writeback.c, wait_sb_inodes leaves out what fuse has).
// Requests come in the order in which they were sent, so that a request of our own behind them says that they are here,
// except for those that the kernel holds back because too many are under way: then it is done once more.
func (s *Server) WriteBack(ctx context.Context) error {
	if s.redirects == nil {
		return nil // nothing can be written
	}
	if nodes := s.fs.tree.Writers(); len(nodes) <= manyWriters {
		s.Refresh(nodes)
	} else {
		defer s.refreshBeside(nodes)
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

// refreshBeside is Refresh for very many files, which takes a while: nearly all of them are closed. What is written to one
// of them before its turn is not told, and so all is written back once more at the end.
func (s *Server) refreshBeside(nodes []worktree.Node) {
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

// manyWriters is for how many files the kernel is made to tell anew while somebody waits.
const manyWriters = 500

// heldBack is how long the kernel is given before it is asked again whether it still holds requests back.
const heldBack = 10 * time.Millisecond

// sendAll has the kernel send what is to be written, and waits until it has come. One thread at a time does so: one that
// hangs stays alone.
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
		return errElsewhere
	}
	if _, err := ignoringEINTR(func() (int, error) { return 0, unix.Syncfs(fd) }); err != nil {
		return err
	}
	if err := unix.Fstatfs(fd, &st); err != nil { // the request behind them
		return err
	}
	var root unix.Stat_t
	if err := unix.Fstat(fd, &root); err != nil {
		return err
	}
	s.settle(fmt.Sprintf("/sys/fs/fuse/connections/%d/waiting", unix.Minor(root.Dev)))
	return nil
}

// What one thread has taken from the device before another one took the request behind it may not have been looked at when
// that is answered. settleTime bounds the wait for it, settleLook is between two looks at it, and settleBlind is the wait
// where nothing can be looked at.
const (
	settleTime  = 20 * time.Millisecond
	settleLook  = 50 * time.Microsecond
	settleBlind = 2 * time.Millisecond
)

// settle waits until all requests that the kernel has no answer to are under way here. The file tells how many those are
// (fs/fuse/control.c); it is there where fusectl is mounted. On a mount where there is always another request this may take
// all of settleTime.
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

// writing are the WRITEs that are being answered.
type writing struct {
	mu    sync.Mutex
	round uint64
	under map[uint64]int // how many began in a round
	ended chan struct{}  // closed when the last of a round ends; nil: nobody waits
}

// begin notes that a WRITE has come; what it gives is for end.
func (w *writing) begin() (round uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.under == nil {
		w.under = make(map[uint64]int)
	}
	w.under[w.round]++
	return w.round
}

func (w *writing) end(round uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.under[round]--; w.under[round] > 0 {
		return
	}
	delete(w.under, round)
	if w.ended != nil {
		close(w.ended)
		w.ended = nil
	}
}

// wait returns when those that have come are answered.
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

func (w *writing) before(round uint64) bool {
	for r := range w.under {
		if r < round {
			return true
		}
	}
	return false
}
