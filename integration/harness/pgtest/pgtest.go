// Package pgtest starts PostgreSQL servers for tests and benchmarks. A server has its own data directory, listens only
// on a Unix socket below it, and can be killed and started again. PostgreSQL refuses to run as root, so root runs it
// with an unprivileged user ID.
package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// unprivileged is the user ID with which PostgreSQL runs if this process runs as root.
const unprivileged = 65534

// ErrMissing reports that PostgreSQL is not installed. scripts/setup.sh installs it.
var ErrMissing = errors.New("find PostgreSQL: not installed")

// patience is the time limit for the start and the end of a server. It is long because machines that run tests are
// busy.
const patience = time.Minute

// Options configures a server.
type Options struct {
	// if true, commits survive a power cut, as in production; if false, they survive only the end of the processes
	Durable bool
	Config  []string // additional settings, such as "max_connections=200"
}

// Server is a PostgreSQL server. Its methods may be called from any goroutine.
type Server struct {
	dir  string // directory of the socket; the data is in the subdirectory "data"
	bin  string
	args []string

	mu    sync.Mutex
	cmd   *exec.Cmd     // nil while the server is stopped
	ended chan struct{} // closed when cmd has ended
}

// Programs returns the directory of PostgreSQL's programs. It prefers the newest version that was installed from
// Debian's packages, and otherwise returns the directory in PATH that contains the programs.
func Programs() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	slices.SortFunc(found, func(a, b string) int {
		if len(a) != len(b) { // a number with more digits is a newer version: 15 is newer than 9
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	if len(found) > 0 {
		return filepath.Dir(found[len(found)-1]), nil
	}
	path, err := exec.LookPath("postgres")
	if err != nil {
		return "", ErrMissing
	}
	return filepath.Dir(path), nil
}

// Start creates a data directory and starts a server with it. The caller must call Close.
func Start(o Options) (*Server, error) {
	bin, err := Programs()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(reachable(), "pg-")
	if err != nil {
		return nil, fmt.Errorf("create directory of PostgreSQL: %w", err)
	}
	s := &Server{dir: dir, bin: bin, args: []string{"-D", filepath.Join(dir, "data"), "-k", dir, "-c", "listen_addresses=",
		"-c", "max_connections=200", "-c", "shared_buffers=8MB", "-c", "autovacuum=off", "-c", "jit=off",
		"-c", "dynamic_shared_memory_type=mmap"}}
	if !o.Durable {
		s.args = append(s.args, "-c", "fsync=off", "-c", "full_page_writes=off")
	}
	for _, setting := range o.Config {
		s.args = append(s.args, "-c", setting)
	}
	if err := s.create(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := s.Restart(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// reachable returns a directory for temporary files that an unprivileged user can also enter. $TMPDIR of tests is often
// a directory that only its owner can enter.
func reachable() string {
	first, _ := filepath.Abs(os.TempDir())
	for _, dir := range []string{first, "/tmp"} {
		open := true
		for d := dir; d != "/"; d = filepath.Dir(d) {
			st, err := os.Stat(d)
			open = open && err == nil && st.Mode().Perm()&1 != 0
		}
		if open || os.Geteuid() != 0 {
			return dir
		}
	}
	return "/var/tmp"
}

// command returns a command that runs one of PostgreSQL's programs.
func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "HOME=" + s.dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGQUIT}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: unprivileged, Gid: unprivileged}
	}
	return cmd
}

func (s *Server) create() error {
	if os.Geteuid() == 0 {
		if err := os.Chown(s.dir, unprivileged, unprivileged); err != nil {
			return fmt.Errorf("create directory of PostgreSQL: %w", err)
		}
	}
	initdb := s.command("initdb", "--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C",
		"-D", filepath.Join(s.dir, "data"))
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	return nil
}

// Restart starts the server again after Kill, and waits until it answers.
func (s *Server) Restart() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		return errors.New("start PostgreSQL: already running")
	}
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	defer log.Close()
	cmd := s.command("postgres", s.args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		cmd.Wait()
		close(ended)
	}()
	s.cmd, s.ended = cmd, ended
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		select {
		case <-ended:
			s.cmd = nil
			return fmt.Errorf("start PostgreSQL: process ended: %s", s.tail())
		default:
		}
		err := s.query("postgres", "select 1", io.Discard)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("start PostgreSQL: no answer within %v: %w: %s", patience, err, s.tail())
		}
	}
}

// Kill kills all processes of the server with SIGKILL and waits for their end. It does nothing if the server is
// stopped.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return nil
	}
	// Each process of PostgreSQL leads its own session, so no process group contains all of them. The first process is
	// stopped before its children are listed, because it could start others. It is killed before its children, because
	// it would replace them.
	s.cmd.Process.Signal(syscall.SIGSTOP)
	if err := stopped(s.cmd.Process.Pid); err != nil {
		return err
	}
	pids := children(s.cmd.Process.Pid)
	s.cmd.Process.Kill()
	<-s.ended
	for _, pid := range pids {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	s.cmd = nil
	return s.awaitEnd(pids)
}

// stopped waits until SIGSTOP has stopped a process, or the process has ended.
func stopped(pid int) error {
	for deadline := time.Now().Add(patience); !strings.Contains("TZX", state(pid)); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return errors.New("kill PostgreSQL: process still runs after SIGSTOP")
		}
	}
	return nil
}

// state returns the letter of a process's state: T if it is stopped, Z if it has ended. It returns X if the process
// does not exist.
func state(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// The state is the first field after the name of the program, which is in parentheses.
	if _, fields, ok := strings.Cut(string(stat), ") "); err == nil && ok {
		return fields[:1]
	}
	return "X"
}

// awaitEnd waits until all given processes have ended. PostgreSQL refuses to start while an old process still uses the
// shared memory.
func (s *Server) awaitEnd(pids []int) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		left := slices.ContainsFunc(pids, func(pid int) bool {
			// A process may use the shared memory until it is a zombie (Z) or does not exist (X).
			return !strings.Contains("ZX", state(pid))
		})
		if !left {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.New("kill PostgreSQL: a process still runs")
		}
	}
}

// children returns the IDs of the child processes of a process.
func children(pid int) []int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	var pids []int
	for _, field := range strings.Fields(string(text)) {
		var child int
		if _, err := fmt.Sscan(field, &child); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}

// Close ends the server and removes its directory.
func (s *Server) Close() error {
	return errors.Join(s.Kill(), os.RemoveAll(s.dir))
}

// URL returns the URL of a database of the server.
func (s *Server) URL(database string) string {
	return "postgres://postgres@/" + database + "?host=" + s.dir
}

// Create creates an empty database and returns its URL. The name may contain lowercase letters, digits and '_'.
func (s *Server) Create(database string) (string, error) {
	if err := s.query("postgres", "create database "+database, io.Discard); err != nil {
		return "", fmt.Errorf("create database %s: %w", database, err)
	}
	return s.URL(database), nil
}

// Query runs SQL commands in a database and returns the rows, with the columns separated by '|'.
func (s *Server) Query(database, sql string) (string, error) {
	var out strings.Builder
	err := s.query(database, sql, &out)
	return strings.TrimSuffix(out.String(), "\n"), err
}

func (s *Server) query(database, sql string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	psql := exec.CommandContext(ctx, filepath.Join(s.bin, "psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h",
		s.dir, "-U", "postgres", "-d", database, "-c", sql)
	psql.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "PGCONNECT_TIMEOUT=5"}
	var stderr bytes.Buffer
	psql.Stdout, psql.Stderr = out, &stderr
	if err := psql.Run(); err != nil {
		return fmt.Errorf("psql: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}

// tail returns the last lines of the server's log.
func (s *Server) tail() []byte {
	log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
	return log[max(0, len(log)-4<<10):]
}
