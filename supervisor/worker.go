package supervisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/keeper"
)

// WorkerFD is the descriptor of a worker for its connection to the supervisor.
const WorkerFD = 3

// worker is a process that serves, has served, or waits for the order to.
type worker struct {
	process *os.Process
	conn    *keeper.Conn
	status  *os.ProcessState // exit status; nil: not known, because it runs or is not a child of this process

	version   string
	waiting   bool      // whether it is ready for the order to serve
	orderedAt time.Time // time of the order to serve
	readyAt   time.Time // time at which it began to serve; zero: it does not serve yet
	endedAt   time.Time // time at which the search for its successor began

	silence      time.Duration // time since its last sign of life
	starved      time.Duration // part of silence in which the host did not let it run
	starting     time.Duration // time since the order to serve, without the time that the host did not let it run
	hung         bool          // whether the watchdog has killed it
	stopping     bool          // whether it has unmounted everything and ends on purpose
	killed       string        // reason for which the supervisor has killed it; "": it has not
	gone, exited bool
}

// workerEnvironment returns the environment without the variables for the supervisor only. A worker
// must not take itself for the process that the service manager started.
func workerEnvironment(all []string) []string {
	var env []string
	for _, e := range all {
		name, _, _ := strings.Cut(e, "=")
		switch name {
		case "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "FDSTORE", handoverVariable:
		default:
			env = append(env, e)
		}
	}
	return env
}

// start starts a worker from an executable file. name is the name that it sees as its own.
func (s *supervisor) start(exe, name string) (*worker, error) {
	conn, peer, err := keeper.Pair()
	if err != nil {
		return nil, fmt.Errorf("start worker: %w", err)
	}
	defer peer.Close()
	cmd := &exec.Cmd{
		Path: exe, Args: append([]string{name}, s.WorkerArgs...), Env: s.env, Dir: "/",
		// The peer becomes descriptor 3, WorkerFD: ExtraFiles follow standard error.
		Stdout: os.Stdout, Stderr: os.Stderr, ExtraFiles: []*os.File{peer},
	}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("start worker: %w", err)
	}
	w := &worker{process: cmd.Process, conn: conn}
	s.watch(w)
	return w, nil
}

// watch sends events for the messages of a worker and for its end.
func (s *supervisor) watch(w *worker) {
	go s.read(w)
	if w.process == nil {
		return
	}
	go func() {
		status, _ := w.process.Wait() // nil: another process's child
		s.bring(event{from: w, exited: true, status: status})
	}()
}

// read sends events for the messages of a worker until its connection ends. It runs in a goroutine
// of its own.
func (s *supervisor) read(w *worker) {
	for {
		m, fds, err := w.conn.Receive()
		// kill sets the deadline: the worker was killed, and its connection should have ended by
		// now.
		if errors.Is(err, os.ErrDeadlineExceeded) {
			s.bring(event{from: w, overdue: true})
			return
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed) {
				s.Log.Warn("read what a worker says", zap.Error(err))
			}
			s.bring(event{from: w, gone: true})
			return
		}
		s.bring(event{from: w, message: m, fds: fds})
	}
}

// bring sends an event to run. After the end of run it closes the descriptors of the event instead,
// so that no sender blocks.
func (s *supervisor) bring(e event) {
	select {
	case s.events <- e:
	case <-s.done:
		closeAll(e.fds)
	}
}

// kill ends a worker. Its end is handled by ended.
func (s *supervisor) kill(w *worker, why string) {
	if w.killed == "" {
		w.killed = why
	}
	if w.process != nil {
		w.process.Kill()
	}
	// A thread of it may hang where SIGKILL does not reach.
	w.conn.SetReadDeadline(time.Now().Add(goneTime))
}

// pid returns the process id of a worker; 0 if it is not known.
func (w *worker) pid() int {
	if w.process == nil {
		return 0
	}
	return w.process.Pid
}

// crashed reports whether a worker ended by a fault of its own, as far as is known.
func (w *worker) crashed() bool {
	if w.killed != "" || w.status == nil {
		return false
	}
	// SIGKILL is sent by the kernel when memory runs out, or by an administrator: it shows no fault
	// of the worker.
	ws, ok := w.status.Sys().(syscall.WaitStatus)
	return ok && !(ws.Signaled() && ws.Signal() == syscall.SIGKILL)
}

// end returns a description of how a worker ended.
func (w *worker) end() string {
	switch {
	case w.killed != "":
		return w.killed
	case w.status == nil:
		return "it was lost"
	}
	ws, ok := w.status.Sys().(syscall.WaitStatus)
	if ok && ws.Signaled() {
		return "it was killed by a signal: " + ws.Signal().String()
	}
	return fmt.Sprintf("it ended with exit code %d, the log says more", w.status.ExitCode())
}

// code returns the exit code with which the supervisor ends after this worker.
func (w *worker) code() int {
	if w.status == nil || w.status.ExitCode() < 0 {
		return 1
	}
	return w.status.ExitCode()
}
