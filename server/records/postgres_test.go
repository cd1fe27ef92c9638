package records

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/internal/harness/await"
)

// postgres is the PostgreSQL server of all tests of this package.
var postgres server

func TestMain(m *testing.M) {
	if os.Getenv(writerEnv) != "" {
		writeInALoop()
		return
	}
	status := m.Run()
	postgres.stop()
	os.Exit(status)
}

// server is a PostgreSQL server that listens on a Unix socket only. It is started by the first test that needs it.
type server struct {
	once sync.Once
	dir  string
	err  error

	mu        sync.Mutex
	cmd       *exec.Cmd
	databases int
}

// database returns the URL of a new database.
func (s *server) database(t testing.TB) string {
	t.Helper()
	s.once.Do(func() { s.err = s.init() })
	if s.err != nil {
		t.Fatalf("start PostgreSQL (scripts/setup.sh installs it): %v", s.err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.databases++
	name := fmt.Sprintf("test%d", s.databases)
	if out, err := s.tool("psql", "-h", s.dir, "-U", "postgres", "-qc", "CREATE DATABASE "+name).CombinedOutput(); err != nil {
		t.Fatalf("create database: %v\n%s", err, out)
	}
	return fmt.Sprintf("postgres:///%s?host=%s&user=postgres", name, s.dir)
}

// tool returns a command of PostgreSQL, run as a user without privileges: the server refuses to run as root.
func (s *server) tool(name string, args ...string) *exec.Cmd {
	path, err := exec.LookPath(name)
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name); err != nil && len(found) > 0 {
		path = slices.Max(found)
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		uid, gid, err := unprivileged()
		if err != nil {
			panic(err)
		}
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: gid}
	}
	return cmd
}

func unprivileged() (uid, gid uint32, err error) {
	u, err := user.Lookup("nobody")
	if err != nil {
		return 0, 0, err
	}
	id, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return 0, 0, err
	}
	group, err := strconv.ParseUint(u.Gid, 10, 32)
	return uint32(id), uint32(group), err
}

func (s *server) init() error {
	var err error
	// The path of a socket is limited to about 100 bytes, so the directory is not below that of a test.
	if s.dir, err = os.MkdirTemp("", "records-pg"); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		uid, gid, err := unprivileged()
		if err != nil {
			return err
		}
		if err := os.Chown(s.dir, int(uid), int(gid)); err != nil {
			return err
		}
	}
	if out, err := s.tool("initdb", "-D", s.dir+"/data", "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8").
		CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return s.start()
}

// start starts the server and waits until it accepts connections.
func (s *server) start() error {
	s.cmd = s.tool("postgres", "-D", s.dir+"/data", "-k", s.dir, "-c", "listen_addresses=", "-c", "max_connections=200",
		"-c", "fsync="+fsync())
	var log bytes.Buffer
	s.cmd.Stderr = &log
	// SIGQUIT ends the server with all of its processes.
	s.cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT
	if err := s.cmd.Start(); err != nil {
		return err
	}
	for end := time.Now().Add(await.Patience); ; time.Sleep(10 * time.Millisecond) {
		if s.tool("psql", "-h", s.dir, "-U", "postgres", "-qc", "SELECT 1").Run() == nil {
			return nil
		}
		if time.Now().After(end) {
			s.halt()
			return fmt.Errorf("PostgreSQL does not answer:\n%s", log.String())
		}
	}
}

// fsync is off except for measurements: the tests kill the server, but not the machine.
func fsync() string {
	if os.Getenv("RECORDS_FSYNC") != "" {
		return "on"
	}
	return "off"
}

// halt ends the server at once, as a crash does.
func (s *server) halt() {
	s.cmd.Process.Signal(syscall.SIGQUIT)
	s.cmd.Wait()
}

func (s *server) stop() {
	if s.cmd != nil {
		s.halt()
	}
	if s.dir != "" {
		os.RemoveAll(s.dir)
	}
}
