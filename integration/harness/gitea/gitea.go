// Package gitea starts a real gitea server with SQLite. Functions of gitea that a git server does not need are turned
// off. scripts/forge.sh builds gitea.
package gitea

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// User is the only user of a Server.
const User = "somebody"

// Server is a running gitea server.
type Server struct {
	URL   string
	Token string // access token of User, with all rights
	Dir   string // all data of the server

	cmd *exec.Cmd
}

// Start starts gitea with an empty data directory dir, and returns when it answers. source is a directory that contains
// the program gitea and gitea's source, because gitea needs templates and other files of the source.
func Start(ctx context.Context, source, dir string) (*Server, error) {
	source, err := filepath.Abs(source)
	if err != nil {
		return nil, err
	}
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	s := &Server{URL: "http://" + addr, Dir: dir}
	_, port, _ := net.SplitHostPort(addr)
	ini := filepath.Join(dir, "custom", "conf", "app.ini")
	text := fmt.Sprintf(config, source, port, addr, dir, dir)
	if err := errors.Join(os.MkdirAll(filepath.Dir(ini), 0o755), os.WriteFile(ini, []byte(text), 0o600)); err != nil {
		return nil, err
	}
	run := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, filepath.Join(source, "gitea"),
			append([]string{"--config", ini, "--work-path", dir}, args...)...)
		cmd.Dir = dir
		// gitea changes git's global configuration. Env sets /dev/null as its path, and a gitea that runs as root would
		// replace /dev/null by a file. So another path is set.
		cmd.Env = append(gittest.Env(), "GIT_CONFIG_GLOBAL="+filepath.Join(dir, "gitconfig"), "GITEA_WORK_DIR="+dir,
			"HOME="+dir, "USER=root",
			"GITEA_I_AM_BEING_UNSAFE_RUNNING_AS_ROOT=true")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return cmd
	}
	if out, err := run("migrate").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("gitea migrate: %w: %s", err, out)
	}
	user := run("admin", "user", "create", "--username", User, "--password", "a-password-for-tests", "--email",
		User+"@localhost.invalid",
		"--admin", "--must-change-password=false")
	if out, err := user.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("gitea admin user create: %w: %s", err, out)
	}
	token, err := run("admin", "user", "generate-access-token", "--username", User, "--scopes", "all", "--raw").Output()
	if err != nil {
		return nil, fmt.Errorf("gitea admin user generate-access-token: %w", err)
	}
	lines := bytes.Split(bytes.TrimSpace(token), []byte("\n")) // lines of the log may precede the token
	s.Token = string(lines[len(lines)-1])
	log, err := os.Create(dir + ".log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s.cmd = run("web")
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start gitea: %w", err)
	}
	if err := s.answers(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// answers waits until the server answers requests.
func (s *Server) answers(ctx context.Context) error {
	for deadline := time.Now().Add(time.Minute); ; {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/api/healthz", nil)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(res.Status)
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("wait for gitea: no answer: %w", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// PID returns the process ID of the server.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Close ends the server with SIGTERM, and kills it if it does not end within a minute.
func (s *Server) Close() error {
	s.cmd.Process.Signal(syscall.SIGTERM)
	kill := time.AfterFunc(time.Minute, func() { s.cmd.Process.Kill() })
	defer kill.Stop()
	err := s.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == -1 { // killed
		return nil
	}
	return err
}

// Create creates an empty repository that belongs to User and has the default branch main.
func (s *Server) Create(ctx context.Context, name string) error {
	return s.Post(ctx, "/api/v1/user/repos", map[string]string{"name": name, "default_branch": "main"})
}

// Repo returns the URL of a repository.
func (s *Server) Repo(owner, name string) string { return s.URL + "/" + owner + "/" + name + ".git" }

// Path returns the git directory of a repository.
func (s *Server) Path(owner, name string) string {
	return filepath.Join(s.Dir, "repositories", owner, name+".git")
}

// Post sends a POST request with a JSON body to the API. It returns an error unless the status of the answer is 201 or
// 202.
func (s *Server) Post(ctx context.Context, path string, body map[string]string) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "token "+s.Token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusCreated && res.StatusCode != http.StatusAccepted {
		err = fmt.Errorf("send POST %s to gitea: status %s: %.300s", path, res.Status, answer)
	}
	return err
}

// freeAddress returns an address of the loopback interface at which no process listens.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// config is the format of gitea's configuration file. Its arguments are the source directory, the port, the address,
// and twice the data directory.
const config = `RUN_MODE = prod
RUN_USER = root
[server]
STATIC_ROOT_PATH = %s
HTTP_ADDR = 127.0.0.1
HTTP_PORT = %s
ROOT_URL = http://%s/
DISABLE_SSH = true
OFFLINE_MODE = true
[database]
DB_TYPE = sqlite3
PATH = %s/gitea.db
[repository]
ROOT = %s/repositories
DEFAULT_BRANCH = main
[security]
INSTALL_LOCK = true
SECRET_KEY = tests
INTERNAL_TOKEN = eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJuYmYiOjE3MDAwMDAwMDB9.tests-tests-tests-tests-tests-tests-tests-tst
PASSWORD_HASH_ALGO = pbkdf2_v1
[service]
DISABLE_REGISTRATION = true
[log]
LEVEL = error
[actions]
ENABLED = false
[indexer]
REPO_INDEXER_ENABLED = false
ISSUE_INDEXER_TYPE = db
[cron]
ENABLED = false
`
