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

// WorkerFD is the descriptor number, in a worker, of the connection to the supervisor.
const WorkerFD = 3

// worker is a process that serves, has served, or waits for the order to serve.
type worker struct {
	// process is nil if this supervisor does not know the process ID of the worker.
	process *os.Process
	conn    *keeper.Conn
	// status is the exit status of the worker; nil if the status is unknown, because the worker still runs or is not a
	// child of this process.
	status *os.ProcessState

	version   string
	waiting   bool      // whether the worker is ready for the order to serve
	orderedAt time.Time // time at which the order to serve was sent
	readyAt   time.Time // time at which the worker began to serve; zero if it does not serve yet
	endedAt   time.Time // time at which the worker's end was handled and the search for its successor began

	silence  time.Duration // time since the last message of the worker
	starved  time.Duration // the part of the duration silence in which the host did not let the worker run
	starting time.Duration // time since the order to serve, without the time in which the host did not let the worker run
	hung     bool          // whether the watchdog has killed the worker
	stopping bool          // whether the worker has unmounted everything and ends on purpose
	killed   string        // reason why the supervisor has killed the worker; "" if the supervisor has not killed it
	// gone is set after the connection has ended, and exited after the process has ended.
	gone, exited bool
}

// workerEnvironment returns the environment without the variables that are meant only for the supervisor. With these
// variables, a worker would behave like the process that the service manager started.
func workerEnvironment(all []string) []string {
	var env []string
	for _, e := range all {
		name, _, _ := strings.Cut(e, "=")
		switch name {
		case "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "FDSTORE",
			handoverVariable:
		default:
			env = append(env, e)
		}
	}
	return env
}

// start starts a worker from the executable file exe. The parameter name is the first element of the worker's argument
// list, under which the worker appears in the list of processes.
func (s *supervisor) start(exe, name string) (*worker, error) {
	conn, peer, err := keeper.Pair()
	if err != nil {
		return nil, fmt.Errorf("start worker: %w", err)
	}
	defer peer.Close()
	cmd := &exec.Cmd{
		Path: exe, Args: append([]string{name}, s.WorkerArgs...), Env: s.program.env, Dir: "/",
		// peer becomes descriptor 3, which is WorkerFD, because ExtraFiles follow standard error.
		Stdout: os.Stdout, Stderr: os.Stderr, ExtraFiles: []*os.File{peer},
	}
	life, err := s.outside.lifeFile()
	if err != nil {
		conn.Close()
		return nil, err
	}
	if life != nil {
		defer life.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, life) // lifeFD
	}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("start worker: %w", err)
	}
	w := &worker{process: cmd.Process, conn: conn}
	s.watch(w)
	return w, nil
}

// watch starts goroutines that send events for the messages of the worker w and for its end.
func (s *supervisor) watch(w *worker) {
	go s.read(w)
	if w.process == nil {
		return
	}
	go func() {
		status, _ := w.process.Wait() // if the worker is the child of another process, status is nil
		s.sendEvent(event{from: w, exited: true, status: status})
	}()
}

// read sends events for the messages of the worker w until its connection ends. It runs in a separate goroutine.
func (s *supervisor) read(w *worker) {
	for {
		m, fds, err := w.conn.Receive()
		// The method kill has set a deadline for the end of the connection of the killed worker. The deadline has passed.
		if errors.Is(err, os.ErrDeadlineExceeded) {
			s.sendEvent(event{from: w, overdue: true})
			return
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed) {
				s.Log.Warn("read message of worker", zap.Error(err))
			}
			s.sendEvent(event{from: w, gone: true})
			return
		}
		s.sendEvent(event{from: w, message: m, fds: fds})
	}
}

// sendEvent sends an event to the goroutine of run. If run has returned, sendEvent closes the descriptors of the event
// instead, because no goroutine would receive the event.
func (s *supervisor) sendEvent(e event) {
	select {
	case s.events <- e:
	case <-s.done:
		keeper.CloseAll(e.fds)
	}
}

// kill kills the worker w and records the reason why. The method ended handles the end of the worker later.
func (s *supervisor) kill(w *worker, why string) {
	if w.killed == "" {
		w.killed = why
	}
	if w.process != nil {
		w.process.Kill()
	}
	// The deadline is needed because a thread of the worker may hang in the kernel, where SIGKILL does not end it.
	w.conn.SetReadDeadline(time.Now().Add(goneTime))
}

// pid returns the process ID of a worker, or 0 if the process ID is unknown.
func (w *worker) pid() int {
	if w.process == nil {
		return 0
	}
	return w.process.Pid
}

// crashed reports whether the worker is known to have ended because of its own fault.
func (w *worker) crashed() bool {
	if w.killed != "" || w.status == nil {
		return false
	}
	// SIGKILL does not show a fault of the worker: it is sent by the kernel when memory runs out, or by an administrator.
	ws, ok := w.status.Sys().(syscall.WaitStatus)
	return ok && !(ws.Signaled() && ws.Signal() == syscall.SIGKILL)
}

// end returns a description of how the worker ended, for logs and users.
func (w *worker) end() string {
	switch {
	case w.killed != "":
		return w.killed
	case w.status == nil:
		return "worker was lost"
	}
	ws, ok := w.status.Sys().(syscall.WaitStatus)
	if ok && ws.Signaled() {
		return "worker was killed by a signal: " + ws.Signal().String()
	}
	return fmt.Sprintf("worker exited with code %d; the log has the details", w.status.ExitCode())
}

// code returns the exit code with which the supervisor ends after this worker has ended.
func (w *worker) code() int {
	if w.status == nil || w.status.ExitCode() < 0 {
		return 1
	}
	return w.status.ExitCode()
}
