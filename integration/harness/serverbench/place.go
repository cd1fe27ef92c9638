package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/client"
)

// remote is a repository on a server.
type remote struct {
	url    string
	header string // HTTP header with the credentials; "" if none
	token  string // the same credentials as a token for artifactfs
	saved  string // token of the session remote, if the session remote is another repository
}

// place is a server that is measured.
type place interface {
	name() string
	// create creates an empty repository.
	create(ctx context.Context, name string) (remote, error)
	// fork creates a repository with the contents of another one.
	fork(ctx context.Context, from, to string) (remote, error)
	// pid returns the process ID of the server, or 0 if it runs in this process.
	pid() int
	dir() string
	end() error
}

const space = "bench" // namespace of the repositories in artifactfs serve

// ours is a process of artifactfs serve as a place of measurements.
type ours struct {
	program string
	data    string
	args    []string
	cmd     *exec.Cmd
	log     *os.File
	c       *client.Client
	addr    string
	url     string
}

// startOurs starts artifactfs serve with a data directory, which may contain the data of an earlier server.
func startOurs(ctx context.Context, program, data string, args ...string) (*ours, error) {
	o := &ours{program: program, data: data, args: args}
	return o, o.start(ctx)
}

func (o *ours) start(ctx context.Context) error {
	if err := os.MkdirAll(o.data, 0o700); err != nil {
		return err
	}
	var err error
	if o.log, err = os.OpenFile(o.data+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return err
	}
	if o.addr == "" {
		if o.addr, err = freeAddress(); err != nil {
			return err
		}
	}
	o.url = "http://" + o.addr
	tokenFile := o.data + ".token"
	o.cmd = exec.Command(o.program,
		append([]string{"serve", "--data", o.data, "--listen", o.addr, "--admin-token-file", tokenFile}, o.args...)...)
	o.cmd.Env = gittest.Env()
	o.cmd.Stdout, o.cmd.Stderr = o.log, o.log
	o.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := o.cmd.Start(); err != nil {
		return fmt.Errorf("start artifactfs serve: %w", err)
	}
	if err := answers(ctx, o.url+"/readyz"); err != nil {
		text, _ := os.ReadFile(o.data + ".log")
		return fmt.Errorf("start artifactfs serve: %w: %s", err, text[max(0, len(text)-2000):])
	}
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		return fmt.Errorf("read admin token: %w", err)
	}
	o.c, err = client.New(client.Options{URL: o.url, Token: strings.TrimSpace(string(token))})
	return err
}

// again ends the server and starts it again at the same address. An ended server leaves no write-ahead log of its
// database.
func (o *ours) again(ctx context.Context) error {
	if err := o.end(); err != nil {
		return err
	}
	return o.start(ctx)
}

func (o *ours) name() string { return "artifactfs" }
func (o *ours) pid() int     { return o.cmd.Process.Pid }
func (o *ours) dir() string  { return o.data }

func (o *ours) create(ctx context.Context, name string) (remote, error) {
	made, err := o.c.CreateRepo(ctx, space, client.CreateRepo{Name: name})
	if err != nil {
		return remote{}, err
	}
	return remote{url: made.Remote, header: "Authorization: Bearer " + made.Token, token: made.Token}, nil
}

func (o *ours) fork(ctx context.Context, from, to string) (remote, error) {
	made, err := o.c.Fork(ctx, space, from, client.Fork{Name: to})
	if err != nil {
		return remote{}, err
	}
	return remote{url: made.Remote, header: "Authorization: Bearer " + made.Token, token: made.Token}, nil
}

func (o *ours) end() error {
	if o.cmd == nil || o.cmd.Process == nil {
		return nil
	}
	defer o.log.Close()
	return stop(o.cmd)
}

// stop ends a process with SIGTERM, and kills it if it has not ended after a minute.
func stop(cmd *exec.Cmd) error {
	cmd.Process.Signal(syscall.SIGTERM)
	kill := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer kill.Stop()
	err := cmd.Wait()
	var exit *exec.ExitError
	// the process was ended by a signal: it does not handle SIGTERM, or was killed
	if errors.As(err, &exit) && exit.ExitCode() == -1 {
		return nil
	}
	return err
}

// answers waits until a request for a URL returns status 200.
func answers(ctx context.Context, url string) error {
	for deadline := time.Now().Add(time.Minute); ; {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
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
			return fmt.Errorf("request %s: no answer: %w", url, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// plain is git http-backend as a place of measurements. It serves directories from this process.
type plain struct {
	root   string
	server *gittest.Server
}

func startPlain(root string) (*plain, error) {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	s, err := gittest.Serve(gittest.ServerOptions{Root: root, Cheap: true})
	return &plain{root, s}, err
}

func (p *plain) name() string { return "http-backend" }
func (p *plain) pid() int     { return 0 }
func (p *plain) dir() string  { return p.root }
func (p *plain) end() error   { return p.server.Close() }

func (p *plain) create(ctx context.Context, name string) (remote, error) {
	dir := filepath.Join(p.root, name+".git")
	if _, err := git(ctx, "", remote{}, "init", "-q", "--bare", "-b", "main", dir); err != nil {
		return remote{}, err
	}
	return remote{url: p.server.URL(name + ".git")}, openToPushes(dir)
}

func (p *plain) fork(ctx context.Context, from, to string) (remote, error) {
	dir := filepath.Join(p.root, to+".git")
	if _, err := git(ctx, "", remote{}, "clone", "-q", "--bare", filepath.Join(p.root, from+".git"), dir); err != nil {
		return remote{}, err
	}
	return remote{url: p.server.URL(to + ".git")}, openToPushes(dir)
}

// openToPushes allows pushes to a repository without credentials. It writes the configuration file itself, because the
// start of git would be measured too.
func openToPushes(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, "config"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString("[http]\n\treceivepack = true\n")
	return errors.Join(err, f.Close())
}

// git runs stock git with the credentials of a remote, and returns the duration.
func git(ctx context.Context, dir string, r remote, args ...string) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.Env = dir, gitEnv(r)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	start := time.Now()
	err := cmd.Run()
	took := time.Since(start)
	if err != nil {
		err = fmt.Errorf("git %s: %w: %.500s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return took, err
}

// gitEnv returns the environment of git, with the credentials of a remote.
func gitEnv(r remote) []string {
	env := gittest.Env()
	if r.header == "" {
		return env
	}
	return append(env, "GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_1=http."+r.url+".extraHeader", "GIT_CONFIG_VALUE_1="+r.header)
}

// basic returns the HTTP header that authenticates a user with a password.
func basic(user, password string) string {
	return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}
