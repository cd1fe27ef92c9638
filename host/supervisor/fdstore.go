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
	fdstoreRetry = 200 * time.Millisecond // pause between two attempts to connect to the descriptor store
	// fdstoreLimit is the maximum wait for the descriptor store while the daemon runs. It is short, because the supervisor
	// must be able to replace a worker at any time.
	fdstoreLimit = time.Second
	// keepTime is the maximum wait for the descriptor store when the daemon exits without unmounting.
	keepTime = 15 * time.Second
)

// outside is the connection to the descriptor store at the socket Config.StoreSocket. The descriptor store is another
// process, which keeps copies of the descriptors of this daemon, so that the mounts survive the end of all processes of
// the daemon. A nil *outside means that no descriptor store is configured; all methods accept a nil *outside.
type outside struct {
	socket, name string
	// life is a pipe that closes when the daemon has ended. The descriptor store has the read end life[0], and every
	// process of the daemon has the write end life[1].
	life   [2]int
	client *fdstore.Client  // nil while there is no connection
	again  <-chan time.Time // time of the next attempt to connect
	log    *zap.Logger
}

// newOutside returns an outside for the descriptor store at the socket, without a connection, or nil if socket is "".
// The parameter name is the name under which the store keeps the descriptors of this daemon.
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

// enter connects to the descriptor store when the daemon starts, and returns the descriptors that an earlier daemon has
// stored there. It fails if there is no connection within fdstoreTime: without the descriptors, the mounts of the
// earlier daemon would become dead mounts.
//
// The function running reports whether another daemon of this name runs. If the descriptor store was just replaced,
// that daemon has to be the first to connect.
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

// connected reports whether there is a connection to the descriptor store, which then has copies of all descriptors.
func (o *outside) connected() bool { return o != nil && o.client != nil }

// lost returns a channel that is closed when the connection to the descriptor store ends, or nil if there is no
// connection.
func (o *outside) lost() <-chan struct{} {
	if !o.connected() {
		return nil
	}
	return o.client.Lost()
}

// retry returns a channel that receives a value when reconnect must be called, or nil if there is a connection.
func (o *outside) retry() <-chan time.Time {
	if o == nil {
		return nil
	}
	return o.again
}

// disconnect closes a connection that has ended or failed, and schedules the next attempt to connect. The parameter why
// is logged.
func (o *outside) disconnect(why error) {
	o.log.Warn("lost descriptor store; connecting again", zap.Error(why))
	o.client.Close()
	o.client, o.again = nil, time.After(fdstoreRetry)
}

// reconnect connects to the descriptor store again, or to the process that has replaced it, and stores all descriptors
// in s there. If it fails, it schedules the next attempt.
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

// do disconnects if err, the result of sending a message to the descriptor store, is not nil.
func (o *outside) do(err error) {
	if err != nil {
		o.disconnect(err)
	}
}

// store sends a copy of the descriptor fd to the descriptor store, which keeps it under the given name.
func (o *outside) store(name string, fd int) {
	if o.connected() {
		o.do(o.client.Store(name, fd))
	}
}

// remove makes the descriptor store close its copy of the descriptor called name.
func (o *outside) remove(name string) {
	if o.connected() {
		o.do(o.client.Remove(name))
	}
}

// barrier waits until the descriptor store has handled all messages, for at most barrierTime.
func (o *outside) barrier() error {
	if !o.connected() {
		return nil
	}
	return o.client.Barrier(barrierTime)
}

// deliver waits until the descriptor store has copies of all descriptors in s. If the descriptor store has ended,
// deliver sends the descriptors to the process that replaces it, which must start within the duration limit.
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

// errNoStore means that no descriptor store has started within the time limit of outside.deliver.
var errNoStore = errors.New("no connection to the descriptor store")

// lifeFile returns a duplicate of the write end of the pipe outside.life, which a new worker inherits. The caller must
// close the file. It is nil if no descriptor store is configured.
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

// KeepLife sets the close-on-exec flag of the pipe by which the descriptor store notices the end of the daemon. A
// worker calls it, because programs that the worker starts may run longer than the daemon, and the descriptor store
// would wait for their end.
func KeepLife() { unix.CloseOnExec(lifeFD) }

// lifeFD is the descriptor number, in a worker, of the write end of the pipe outside.life.
const lifeFD = WorkerFD + 1

// keeps reports whether a service manager or a descriptor store has copies of the descriptors.
func (s *supervisor) keeps() bool { return s.manager.keeps() || s.outside.connected() }

// storeOutside sends a copy of a descriptor to the service manager and to the descriptor store. The copy replaces an
// earlier one with the same name.
func (s *supervisor) storeOutside(name string, fd int) {
	s.manager.store(name, fd)
	s.outside.store(name, fd)
}

// removeOutside removes the descriptor called name from the service manager and from the descriptor store.
func (s *supervisor) removeOutside(name string) {
	s.manager.remove(s.store, name)
	s.outside.remove(name)
}

// barrier waits until the service manager and the descriptor store have handled all messages about descriptors.
func (s *supervisor) barrier() {
	s.manager.barrier()
	if err := s.outside.barrier(); err != nil {
		s.Log.Error("store descriptors", zap.Error(err))
	}
}
