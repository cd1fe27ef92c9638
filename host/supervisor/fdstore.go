package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/host/fdstore"
	"github.com/artifactfs/artifactfs/internal/keeper"
)

const (
	fdstoreTime  = 30 * time.Second       // maximum wait for the descriptor store when the daemon starts
	fdstoreRetry = 200 * time.Millisecond // pause between two attempts to connect to it again
	// fdstoreLimit is the maximum wait for the descriptor store while the daemon runs. It is short, because the supervisor must be
	// able to replace a worker at any time.
	fdstoreLimit = time.Second
	// leaveTime is the maximum wait for the descriptor store when the daemon exits and leaves its mounts there.
	leaveTime = 15 * time.Second
)

// outside is the descriptor store that --fd-store names. It keeps copies of the descriptors outside of this daemon, so that the mounts
// survive the end of all its processes. A nil *outside means that there is none. All methods accept a nil *outside.
type outside struct {
	socket, name string
	// life is the pipe by which the descriptor store notices the end of the daemon: it gets the read end life[0], and every process
	// of the daemon has the write end life[1].
	life   [2]int
	client *fdstore.Client  // nil while there is no connection
	again  <-chan time.Time // time of the next attempt to connect
	log    *zap.Logger
}

// newOutside returns the descriptor store at the socket, not connected, or nil if socket is "". The parameter name is the name of
// this daemon.
func newOutside(socket, name string, log *zap.Logger) (*outside, error) {
	if socket == "" {
		return nil, nil
	}
	o := &outside{socket: socket, name: name, log: log}
	if err := unix.Pipe2(o.life[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("create pipe for descriptor store: %w", err)
	}
	return o, nil
}

// enter connects for the first time, and returns the descriptors that an earlier daemon has left. It fails if there is no
// connection within fdstoreTime: a daemon that started without the descriptors would leave the mounts of the earlier daemon dead.
//
// The function running reports whether another daemon of this name runs. If the descriptor store was just replaced, that daemon has to
// be the first to connect.
func (o *outside) enter(ctx context.Context, running func() bool) (store, error) {
	if o == nil {
		return store{}, nil
	}
	end := time.Now().Add(fdstoreTime)
	for reported := false; ; {
		asked := false
		d := fdstore.Daemon{Name: o.name, Life: o.life[0], After: running()}
		client, kept, err := fdstore.Connect(ctx, o.socket, d, func() {
			o.log.Info("wait for the end of the earlier daemon")
			asked = true
		})
		if err == nil {
			o.client = client
			return kept, nil
		}
		if asked { // the descriptor store has ended during the wait, which may have been long
			end, reported = time.Now().Add(fdstoreTime), false
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return nil, fmt.Errorf("connect to descriptor store %s: %w", o.socket, err)
		}
		if !reported {
			reported = true
			o.log.Warn("wait for descriptor store", zap.String("socket", o.socket), zap.Error(err))
		}
		select {
		case <-time.After(fdstoreRetry):
		case <-ctx.Done():
		}
	}
}

// connected reports whether the descriptor store has everything.
func (o *outside) connected() bool { return o != nil && o.client != nil }

// lost returns a channel that is closed when the connection ends; nil if there is none.
func (o *outside) lost() <-chan struct{} {
	if !o.connected() {
		return nil
	}
	return o.client.Lost()
}

// retry returns a channel that receives a value when reconnect must be called; nil if there is a connection.
func (o *outside) retry() <-chan time.Time {
	if o == nil {
		return nil
	}
	return o.again
}

// disconnect closes a connection that has ended or does not work, and schedules another one.
func (o *outside) disconnect(why error) {
	o.log.Warn("lost descriptor store; connecting again", zap.Error(why))
	o.client.Close()
	o.client, o.again = nil, time.After(fdstoreRetry)
}

// reconnect connects to the descriptor store, or to its successor, and stores all descriptors again.
func (o *outside) reconnect(s store) {
	ctx, cancel := context.WithTimeout(context.Background(), fdstoreLimit)
	defer cancel()
	client, kept, err := fdstore.Connect(ctx, o.socket, fdstore.Daemon{Name: o.name, Life: o.life[0]}, func() {})
	if err != nil {
		o.again = time.After(fdstoreRetry)
		return
	}
	keeper.CloseAll(store(kept).numbers()) // those of s are newer
	o.client, o.again = client, nil
	for name, fd := range s {
		o.store(name, fd)
	}
	if o.client != nil {
		o.do(o.client.Complete())
	}
	if o.client != nil {
		o.log.Info("connected to descriptor store again", zap.Int("descriptors", len(s)))
	}
}

// do handles the result of a message to the descriptor store.
func (o *outside) do(err error) {
	if err != nil {
		o.disconnect(err)
	}
}

// store passes a copy of a descriptor to the descriptor store.
func (o *outside) store(name string, fd int) {
	if o.connected() {
		o.do(o.client.Store(name, fd))
	}
}

// remove makes the descriptor store close the descriptor called name.
func (o *outside) remove(name string) {
	if o.connected() {
		o.do(o.client.Remove(name))
	}
}

// barrier waits until the descriptor store has handled all messages.
func (o *outside) barrier() error {
	if !o.connected() {
		return nil
	}
	return o.client.Barrier(barrierTime)
}

// deliver waits until the descriptor store has handled all messages. If it has ended, deliver passes the descriptors to its successor,
// which must start within the duration limit.
func (o *outside) deliver(s store, limit time.Duration) error {
	if o == nil {
		return nil
	}
	for end := time.Now().Add(limit); ; time.Sleep(fdstoreRetry) {
		err := errNoStore
		if o.connected() {
			if err = o.barrier(); err == nil {
				return nil
			}
			o.disconnect(err)
		}
		if time.Now().After(end) {
			return err
		}
		o.reconnect(s)
	}
}

// errNoStore is returned by deliver if no descriptor store has started in time.
var errNoStore = errors.New("no connection to the descriptor store")

// lifeFile returns the write end of the pipe for a worker, which the caller must close; nil if there is no descriptor store.
func (o *outside) lifeFile() (*os.File, error) {
	if o == nil {
		return nil, nil
	}
	fd, err := unix.FcntlInt(uintptr(o.life[1]), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("copy pipe for descriptor store: %w", err)
	}
	return os.NewFile(uintptr(fd), "life"), nil
}

// KeepLife makes the pipe that a worker of a daemon with a descriptor store has inherited invisible to the programs that the worker
// starts: they may outlive the daemon, and the descriptor store would wait for their end.
func KeepLife() { unix.CloseOnExec(lifeFD) }

// lifeFD is the number of the write end of the pipe in a worker.
const lifeFD = WorkerFD + 1

// keeps reports whether the descriptors are also kept outside of this daemon, by a service manager or by a descriptor store.
func (s *supervisor) keeps() bool { return s.manager.keeps() || s.outside.connected() }

// storeOutside stores a copy of a descriptor outside of this daemon, in place of an earlier one with the same name.
func (s *supervisor) storeOutside(name string, fd int) {
	s.manager.store(name, fd)
	s.outside.store(name, fd)
}

// removeOutside removes the descriptor called name outside of this daemon.
func (s *supervisor) removeOutside(name string) {
	s.manager.remove(s.store, name)
	s.outside.remove(name)
}

// barrier waits until all messages about descriptors were handled outside of this daemon.
func (s *supervisor) barrier() {
	s.manager.barrier()
	if err := s.outside.barrier(); err != nil {
		s.Log.Error("store descriptors", zap.Error(err))
	}
}
