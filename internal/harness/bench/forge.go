package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	forgeUser = "somebody"
	forgePass = "a-password-for-tests"
)

// forge starts a gitea server with a repository that contains the base. source is a directory with gitea's source, which has
// templates and other files that gitea needs, and with the program gitea. If source is "", there is no forge.
func (r *rig) forge(source string) (carryPlace, error) {
	if source == "" {
		return carryPlace{}, nil
	}
	program := filepath.Join(source, "gitea")
	dir := r.path("forge")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return carryPlace{}, err
	}
	addr := l.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	l.Close()
	ini := filepath.Join(dir, "custom", "conf", "app.ini")
	config := fmt.Sprintf(`RUN_MODE = prod
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
[lfs]
`, source, port, addr, dir, dir)
	if err := errors.Join(os.MkdirAll(filepath.Dir(ini), 0o755), os.WriteFile(ini, []byte(config), 0o600)); err != nil {
		return carryPlace{}, err
	}
	run := func(args ...string) *exec.Cmd {
		cmd := exec.Command(program, append([]string{"--config", ini, "--work-path", dir}, args...)...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GITEA_WORK_DIR="+dir, "HOME="+dir, "USER=root", "GITEA_I_AM_BEING_UNSAFE_RUNNING_AS_ROOT=true")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return cmd
	}
	for _, args := range [][]string{{"migrate"}, {"admin", "user", "create", "--username", forgeUser, "--password", forgePass, "--email", "somebody@localhost.invalid", "--admin", "--must-change-password=false"}} {
		if out, err := run(args...).CombinedOutput(); err != nil {
			return carryPlace{}, fmt.Errorf("gitea %s: %w: %s", args[0], err, out)
		}
	}
	web := run("web")
	var said bytes.Buffer
	web.Stdout, web.Stderr = &said, &said
	if err := web.Start(); err != nil {
		return carryPlace{}, err
	}
	end := func() error {
		web.Process.Signal(os.Interrupt)
		return web.Wait()
	}
	url := "http://" + forgeUser + ":" + forgePass + "@" + addr
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		answer, err := http.Post(url+"/api/v1/user/repos", "application/json", strings.NewReader(`{"name":"s","default_branch":"main"}`))
		if err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusCreated {
				break
			}
			err = errors.New(answer.Status)
		}
		if time.Now().After(deadline) {
			end()
			return carryPlace{}, fmt.Errorf("make a repository in gitea: %w: %s", err, &said)
		}
	}
	url += "/" + forgeUser + "/s.git"
	if _, err := r.sh(r.repo, "git push -q "+url+" main"); err != nil {
		end()
		return carryPlace{}, err
	}
	return carryPlace{"gitea", url, filepath.Join(dir, "repositories", forgeUser, "s.git"), end}, nil
}
