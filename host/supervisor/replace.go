package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/host/supervisor/early"
	"github.com/artifactfs/artifactfs/internal/keeper"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// handoverVariable is the name of the environment variable that is set if this supervisor continues the work of another
// supervisor or of a worker. "self:N" is set before exec(2): the same process, which ran an older executable as a
// supervisor, has written a handover to the descriptor N. "worker:N" is set by a worker whose supervisor has died: it
// sends its descriptors through the connection N.
const handoverVariable = early.Variable

// handover is the state that a supervisor passes to the next executable through exec(2), encoded as JSON.
type handover struct {
	// Descriptors holds the descriptors of the mounts.
	Descriptors store `json:"kept"`
	Conn        int   `json:"conn"` // descriptor of the connection to the worker
	PID         int   `json:"pid"`  // process ID of the worker
	// Version is the version of the worker.
	Version string `json:"version"`
	// Count is the number of takeovers since the daemon started.
	Count int `json:"count"`
	// Hung is the number of workers that the watchdog has killed since the daemon started. Older supervisors do not
	// write this field.
	Hung int `json:"hung"`
	// Reason is the reason why the last worker ended.
	Reason string `json:"reason"`
	// Life is outside.life, the pipe by which the descriptor store notices the end of the daemon; missing if no store
	// is configured.
	Life *[2]int `json:"life,omitempty"`
}

// inherit takes over the descriptors, and possibly the worker, of a previous supervisor or of a worker whose supervisor
// has died. If there is neither, it stores the descriptors that the service manager and the descriptor store have kept.
func (s *supervisor) inherit(ctx context.Context) (err error) {
	if s.outside, err = newOutside(s.StoreSocket, s.StoreName, s.Log); err != nil {
		return err
	}
	how, number, _ := strings.Cut(os.Getenv(handoverVariable), ":")
	// Processes that this process starts must not inherit the variable.
	os.Unsetenv(handoverVariable)
	fd, err := strconv.Atoi(number)
	if how != "" && err != nil {
		return fmt.Errorf("read variable %s: %w", handoverVariable, err)
	}
	switch how {
	case "self":
		err = s.inheritSelf(fd)
	case "worker":
		err = s.inheritWorker(fd)
	default:
		return s.inheritStored(ctx)
	}
	if err == nil && s.outside != nil {
		s.outside.reconnect(s.store)
	}
	return err
}

// inheritStored fills s.store with the descriptors that an earlier daemon has stored in the service manager or in the
// descriptor store.
func (s *supervisor) inheritStored(ctx context.Context) error {
	s.store = passed()
	kept, err := s.outside.enter(ctx, s.Running)
	if err != nil {
		return err
	}
	for name, fd := range kept {
		if _, ok := s.store[name]; ok {
			unix.Close(fd)
			continue
		}
		s.store.put(name, fd)
	}
	if len(s.store) > 0 {
		s.reason = "daemon was restarted"
	}
	return nil
}

// inheritSelf reads the handover that the previous executable of this process (method exec) wrote to the descriptor fd,
// and continues with the same worker.
func (s *supervisor) inheritSelf(fd int) error {
	f := os.NewFile(uintptr(fd), "handover")
	defer f.Close()
	var h handover
	if err := json.NewDecoder(f).Decode(&h); err != nil {
		return fmt.Errorf("read handover state: %w", err)
	}
	for _, fd := range h.Descriptors {
		// The descriptors stayed open during exec(2), because exec had cleared their close-on-exec flag. Set the flag again,
		// because workers must not inherit these descriptors.
		unix.CloseOnExec(fd)
	}
	unix.CloseOnExec(h.Conn)
	if s.outside != nil && h.Life != nil {
		unix.Close(s.outside.life[0])
		unix.Close(s.outside.life[1])
		s.outside.life = *h.Life
		unix.CloseOnExec(h.Life[0])
		unix.CloseOnExec(h.Life[1])
	}
	s.store, s.count, s.hung, s.reason, s.begun, s.served = h.Descriptors, h.Count, h.Hung, h.Reason, true, true
	conn, err := keeper.Open(h.Conn)
	if err != nil {
		return err
	}
	process, err := os.FindProcess(h.PID)
	if err != nil {
		return fmt.Errorf("find worker process: %w", err)
	}
	now := time.Now()
	s.worker = &worker{process: process, conn: conn, version: h.Version, waiting: true, orderedAt: now, readyAt: now}
	s.watch(s.worker)
	s.Log.Info("replaced supervisor", zap.Int("worker", h.PID))
	s.scheduleSpare()
	return nil
}

// inheritWorker receives the descriptors of a worker whose supervisor has died. Descriptor fd is the connection to this
// worker. inheritWorker starts the next worker at once, which serves after the old worker has ended.
func (s *supervisor) inheritWorker(fd int) error {
	unix.CloseOnExec(fd)
	conn, err := keeper.Open(fd)
	if err != nil {
		return err
	}
	for {
		// The old worker sends its descriptors one by one, and then the StartServing message.
		m, fds, err := conn.Receive()
		if err != nil {
			return fmt.Errorf("receive message from worker: %w", err)
		}
		switch {
		case m[keeper.Store] != "" && len(fds) == 1:
			s.store.put(m[keeper.Name], fds[0])
			continue
		case m[keeper.StartServing] == "":
			keeper.CloseAll(fds)
			continue
		}
		start := keeper.StartOf(m)
		s.count, s.hung, s.begun, s.served = start.Count, start.Hung, true, true
		break
	}
	if s.next, err = s.start(s.program.path, s.Executable); err != nil {
		// ignore this error, because another worker is started when a worker is needed
		s.Log.Warn("start worker", zap.Error(err))
	}
	// The old worker exits when it receives this message.
	if err := conn.SendKey(keeper.Adopted, "1"); err != nil {
		return err
	}
	s.worker = &worker{conn: conn, killed: "supervisor was lost", orderedAt: time.Now(), readyAt: time.Now(), exited: true}
	s.watch(s.worker)
	return nil
}

// replace makes this process run another executable as supervisor, which continues with the same worker. It returns
// only if this fails.
func (s *supervisor) replace(file *os.File) error {
	// The new executable starts a spare worker itself, so this process no longer needs its spare.
	s.killNext()
	w := s.worker
	// A read deadline in the past ends the goroutine in the method read, between two messages. No message is lost: unread
	// messages stay in the socket for the next executable.
	w.conn.SetReadDeadline(time.Unix(1, 0))
	for reading := true; reading; {
		e := <-s.events
		switch {
		case e.from != w || e.message != nil || e.exited:
			// ignore the results, which matter only for the end of this worker's connection; that event is handled last
			s.handle(e)
		default:
			reading = false
			if e.gone {
				go s.sendEvent(e) // handle this event again later, after the events that precede it
				return errors.New("worker has exited")
			}
		}
	}
	// exec returns only after a failure and leaves this process unchanged, so start the goroutine in the method read
	// again.
	err := s.exec(file, w)
	w.conn.SetReadDeadline(time.Time{})
	go s.read(w)
	return err
}

// exec writes the handover to a memory file and calls exec(2) with the executable file. It returns only if it fails.
func (s *supervisor) exec(file *os.File, w *worker) error {
	// Dup returns a plain descriptor, which can stay open during exec(2).
	conn, err := w.conn.Dup()
	if err != nil {
		return fmt.Errorf("replace supervisor: %w", err)
	}
	defer unix.Close(conn)
	state, err := unix.MemfdCreate("handover", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("replace supervisor: %w", err)
	}
	f := os.NewFile(uintptr(state), "handover")
	defer f.Close()
	h := handover{Descriptors: s.store, Conn: conn, PID: w.process.Pid, Version: w.version, Count: s.count, Hung: s.hung,
		Reason: s.reason}
	if s.outside != nil {
		h.Life = &s.outside.life
	}
	if err := json.NewEncoder(f).Encode(h); err != nil {
		return fmt.Errorf("replace supervisor: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("replace supervisor: %w", err)
	}
	passOn := []int{h.Conn, state}
	if h.Life != nil {
		passOn = append(passOn, h.Life[:]...)
	}
	for _, fd := range s.store {
		passOn = append(passOn, fd)
	}
	// A process that is started at this time must not inherit the descriptors, so hold ForkLock.
	syscall.ForkLock.Lock()
	defer syscall.ForkLock.Unlock()
	for _, fd := range passOn {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("replace supervisor: %w", err)
		}
		defer unix.CloseOnExec(fd)
	}
	env := append(os.Environ(), handoverVariable+"="+early.Replaced+strconv.Itoa(state))
	select {
	case <-s.exit.asked: // the new executable would not know it
		return errAsked
	default:
	}
	// The context of a signal ends in another goroutine, perhaps later. Only a signal is lost that arrives now, until
	// execve(2) has reset its handler.
	if len(early.Asked()) > 0 {
		return errAsked
	}
	// The path refers to the open file, so exec(2) works even if the file's own path was replaced or removed.
	err = syscall.Exec(proc.FDPath(file), append([]string{s.Executable}, s.Args...), env)
	return fmt.Errorf("replace supervisor: %w", err)
}

// errAsked means that the supervisor is not replaced, because the daemon was asked to exit.
var errAsked = errors.New("daemon was asked to exit")

// Resurrect starts another supervisor, sends the descriptors of this worker to it, and exits this process. A worker
// calls it after its supervisor has died. It returns only if one of these steps fails.
func Resurrect(conn *keeper.Conn, executable string, args []string, s keeper.Start) error {
	to, peer, err := keeper.Pair()
	if err != nil {
		return err
	}
	cmd := &exec.Cmd{
		Path: proc.Self.ExecutablePath(), Args: append([]string{executable}, args...), Dir: "/",
		Env:    append(os.Environ(), handoverVariable+"=worker:"+strconv.Itoa(WorkerFD)),
		Stdout: os.Stdout, Stderr: os.Stderr, ExtraFiles: []*os.File{peer},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	err = cmd.Start()
	peer.Close()
	if err != nil {
		to.Close()
		return fmt.Errorf("start supervisor: %w", err)
	}
	if err := conn.HandOver(to, s); err != nil {
		// The worker continues to serve, so the supervisor that was just started is not needed.
		to.Close()
		cmd.Process.Kill()
		cmd.Wait()
		return err
	}
	os.Exit(0)
	// The next worker starts to serve when the connection closes. KeepAlive prevents a finalizer from closing the
	// connection before this process exits.
	runtime.KeepAlive(to)
	return nil
}
