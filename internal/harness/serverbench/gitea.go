package main

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

	"github.com/artifactfs/artifactfs/internal/harness/gittest"
)

const (
	giteaUser     = "somebody"
	giteaPassword = "a-password-for-tests"
)

// gitea is a gitea server with SQLite and without what a git server does not need.
type gitea struct {
	data  string
	url   string
	token string
	cmd   *exec.Cmd
	forks int
}

// startGitea starts gitea. source is a directory with gitea's source, which has templates and other files that gitea needs, and with
// the program gitea.
func startGitea(ctx context.Context, source, data string) (*gitea, error) {
	source, err := filepath.Abs(source)
	if err != nil {
		return nil, err
	}
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	g := &gitea{data: data, url: "http://" + addr}
	_, port, _ := net.SplitHostPort(addr)
	ini := filepath.Join(data, "custom", "conf", "app.ini")
	config := fmt.Sprintf(giteaConfig, source, port, addr, data, data)
	if err := errors.Join(os.MkdirAll(filepath.Dir(ini), 0o755), os.WriteFile(ini, []byte(config), 0o600)); err != nil {
		return nil, err
	}
	run := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, filepath.Join(source, "gitea"), append([]string{"--config", ini, "--work-path", data}, args...)...)
		cmd.Dir = data
		// gitea changes git's global configuration. As root it would put a file in the place of /dev/null, which Env names.
		cmd.Env = append(gittest.Env(), "GIT_CONFIG_GLOBAL="+filepath.Join(data, "gitconfig"), "GITEA_WORK_DIR="+data, "HOME="+data, "USER=root", "GITEA_I_AM_BEING_UNSAFE_RUNNING_AS_ROOT=true")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return cmd
	}
	if out, err := run("migrate").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("gitea migrate: %w: %s", err, out)
	}
	user := run("admin", "user", "create", "--username", giteaUser, "--password", giteaPassword, "--email", "somebody@localhost.invalid",
		"--admin", "--must-change-password=false")
	if out, err := user.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("gitea admin user create: %w: %s", err, out)
	}
	token, err := run("admin", "user", "generate-access-token", "--username", giteaUser, "--scopes", "all", "--raw").Output()
	if err != nil {
		return nil, fmt.Errorf("gitea admin user generate-access-token: %w", err)
	}
	lines := bytes.Split(bytes.TrimSpace(token), []byte("\n")) // lines of the log may come first
	g.token = string(lines[len(lines)-1])
	log, err := os.Create(data + ".log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	g.cmd = run("web")
	g.cmd.Stdout, g.cmd.Stderr = log, log
	if err := g.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start gitea: %w", err)
	}
	return g, answers(ctx, g.url+"/api/healthz")
}

func (g *gitea) name() string { return "gitea" }
func (g *gitea) pid() int     { return g.cmd.Process.Pid }
func (g *gitea) dir() string  { return g.data }
func (g *gitea) end() error   { return stop(g.cmd) }

func (g *gitea) create(ctx context.Context, name string) (remote, error) {
	err := g.post(ctx, "/api/v1/user/repos", map[string]string{"name": name, "default_branch": "main"})
	return g.remote(giteaUser, name), err
}

// fork forks into a new organization, because gitea allows one fork of a repository for each owner. The organization is created
// before, by prepareFork.
func (g *gitea) fork(ctx context.Context, from, to string) (remote, error) {
	owner := g.owner()
	err := g.post(ctx, "/api/v1/repos/"+giteaUser+"/"+from+"/forks", map[string]string{"organization": owner, "name": to})
	return g.remote(owner, to), err
}

// prepareFork creates the organization of the next fork.
func (g *gitea) prepareFork(ctx context.Context) error {
	g.forks++
	return g.post(ctx, "/api/v1/orgs", map[string]string{"username": g.owner()})
}

// owner returns the organization of the newest fork.
func (g *gitea) owner() string { return fmt.Sprint("group", g.forks) }

func (g *gitea) remote(owner, name string) remote {
	return remote{url: g.url + "/" + owner + "/" + name + ".git", header: basic(giteaUser, g.token), token: g.token}
}

// post sends a request to the API. It must be answered by 201 or 202.
func (g *gitea) post(ctx context.Context, path string, body map[string]string) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "token "+g.token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusCreated && res.StatusCode != http.StatusAccepted {
		err = fmt.Errorf("gitea answers POST %s with %s: %.300s", path, res.Status, answer)
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

// giteaConfig needs the source directory, the port, the address, and twice the data directory.
const giteaConfig = `RUN_MODE = prod
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
