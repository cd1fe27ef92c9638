package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/control"
)

// scenario is a list of shell commands that is run on both sides.
type scenario struct {
	name   string // its row in doc/compatibility.md
	steps  string // a step each line
	why    string // in the table: the reason of the figures
	warm   bool   // all contents are fetched before
	own    bool   // the server's repository is changed
	online bool   // the commands use the server in the clone, too
	ref    string // what is mounted; "": the default branch
}

func (s scenario) lines() []string { return strings.Split(strings.Trim(s.steps, "\n"), "\n") }

// pair is a mount and a clone at the same starting point. It has a state directory, and so a daemon and a cache, of its
// own, and the server knows its repository by a name of its own: what it costs can be counted.
type pair struct {
	x            *gitFixture
	w            *world // the pair's world, used only for commands
	repo         string // on the server
	mount, clone *gitSide
	id           string
	args         []string // of the mount
}

// pair prepares for a scenario. It may be called from any goroutine.
func (x *gitFixture) pair(s scenario) (*pair, error) {
	n := x.made.Add(1)
	root := filepath.Join(x.w.root, fmt.Sprintf("p%d", n))
	p := &pair{x: x, repo: fmt.Sprintf("s%d.git", n),
		w: &world{root: root, state: filepath.Join(root, "state"), env: x.env}}
	server := filepath.Join(x.w.repos, p.repo)
	url := x.server.URL(p.repo)
	side := func(name string) *gitSide {
		g := &gitSide{name: name, home: filepath.Join(root, name), server: server, url: url, env: x.env}
		g.gitDir = filepath.Join(g.top(), ".git")
		return g
	}
	p.mount, p.clone = side("mount"), side("clone")
	if err := errors.Join(os.Mkdir(root, 0o755), p.serve(s.own), p.clone.checkOut(x, s.ref)); err != nil {
		return nil, err
	}
	if x.clones {
		p.mount.name = "other clone"
		return p, p.mount.checkOut(x, s.ref)
	}
	p.args = []string{"--history", "full", "--wait", "git", "--prefetch", "none"}
	if s.warm {
		p.args = []string{"--history", "full", "--wait", "all", "--prefetch", "all"}
	}
	if s.ref != "" {
		p.args = append(p.args, "--ref", s.ref)
	}
	return p, errors.Join(os.Mkdir(p.mount.home, 0o755), p.again())
}

// serve makes the fixture available under the pair's name: a copy if the scenario changes the repository.
func (p *pair) serve(own bool) error {
	if !own {
		return os.Symlink(filepath.Base(p.x.repo), p.clone.server)
	}
	if err := os.RemoveAll(p.clone.server); err != nil {
		return err
	}
	return copyTree(p.x.repo, p.clone.server)
}

// checkOut copies the template clone, sets its URL to that of the side, and refreshes its index for the copied files.
func (g *gitSide) checkOut(x *gitFixture, ref string) error {
	if ref != "" {
		top := g.top()
		return errors.Join(os.MkdirAll(top, 0o755), g.prepare("git clone -q --branch "+ref+" "+g.url+" ."))
	}
	if err := copyTree(x.template, g.home); err != nil {
		return err
	}
	return g.prepare("git config remote.origin.url "+g.url,
		fmt.Sprintf("test ! -d .git/logs || find .git/logs -type f -exec sed -i 's#%s#%s#' {} +",
			x.server.URL(filepath.Base(x.repo)), g.url),
		"git update-index -q --refresh")
}

// prepare runs lines that must succeed.
func (g *gitSide) prepare(lines ...string) error {
	for _, line := range lines {
		a, err := g.step(0, line)
		if err == nil && a.code != 0 {
			err = fmt.Errorf("exit code %d: %s", a.code, a.stderr)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
	}
	return nil
}

// afs runs the binary for the pair.
func (p *pair) afs(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	cmd := p.w.command(ctx, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("artifactfs %q: %w: %s", args, err, &stderr)
	}
	return string(out), nil
}

// again mounts the pair's mount, for the first time or after an unmount.
func (p *pair) again() error {
	out, err := p.afs(append([]string{"mount", p.mount.url, p.mount.top(), "--json"}, p.args...)...)
	if err != nil {
		return err
	}
	var m control.MountReply
	if err := json.Unmarshal([]byte(out), &m); err != nil {
		return fmt.Errorf("mount printed %q: %w", out, err)
	}
	p.id = m.ID
	p.mount.gitDir = filepath.Join(p.w.state, "mounts", m.ID, "git")
	return p.quiet()
}

// quiet waits until the mount has no request in flight.
func (p *pair) quiet() error {
	if p.x.clones {
		return nil
	}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		_, _, before := p.x.asked(p.repo)
		mounts, ok := p.w.peek()
		if !ok {
			return fmt.Errorf("the daemon of %s does not answer", p.mount.top())
		}
		requests, _, over := p.x.asked(p.repo)
		if idle(mounts) && requests == before && over == before {
			return nil
		}
	}
	return fmt.Errorf("waited for %s, but %s still has requests in flight", patience, p.mount.top())
}

// cost counts the requests and contents that a scenario made the mount fetch.
type cost struct {
	requests, blobs int
	overload        time.Duration // time in which the machine was overloaded
}

// do runs steps on both sides and compares. The sides run at the same time, unless the clone too talks to the server,
// or changes it.
func (p *pair) do(s scenario) (cost, error) {
	var c cost
	var onMount, onClone left
	clone := func() { onClone = leave(p.clone, s) }
	var both sync.WaitGroup
	if !s.own && !s.online {
		both.Go(clone)
	}
	start := now()
	requests, blobs, _ := p.x.asked(p.repo)
	onMount = leave(p.mount, s, func() error {
		err := p.quiet()
		c.overload = start.overload()
		c.requests, c.blobs, _ = p.x.asked(p.repo)
		c.requests -= requests
		c.blobs -= blobs
		return err
	})
	both.Wait()
	if s.own { // restore the repository for the other side
		if err := p.serve(true); err != nil {
			return c, err
		}
	}
	if s.own || s.online {
		clone()
	}
	if os.Getenv("AFS_GIT_TRACE") != "" {
		for _, a := range onClone.answers {
			fmt.Printf("%s: $ %s\n%s%sexit code %d\n", s.name, a.line, a.stdout, a.stderr, a.code)
		}
	}
	if err := errors.Join(onMount.err, onClone.err); err != nil {
		return c, err
	}
	return c, errors.Join(sameAnswers(onMount.answers, onClone.answers), sameState(onMount.state, onClone.state))
}

// left is the output of a scenario on one side, and the state of that side afterwards.
type left struct {
	answers []answer
	state   gitState
	err     error
}

// leave runs a scenario on a side, then the commands that must precede reading its state.
func leave(g *gitSide, s scenario, then ...func() error) left {
	var l left
	l.answers, l.err = g.run(s.lines())
	for _, f := range then {
		if l.err == nil {
			l.err = f()
		}
	}
	if l.err == nil {
		l.state, l.err = g.state()
	}
	return l
}

// log returns the end of the daemon's log.
func (p *pair) log() []byte {
	log, _ := os.ReadFile(p.w.logFile())
	return log[max(0, len(log)-4<<10):]
}

// end unmounts the pair and removes all its files.
func (p *pair) end() error {
	var err error
	if !p.x.clones {
		_, err = p.afs("unmount", p.mount.top(), "--discard", "--yes")
		_, err2 := p.afs("unmount", "--all") // the daemon's end
		err = errors.Join(err, err2)
	}
	for deadline := time.Now().Add(patience); len(daemonsBelow(p.w.root)) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return errors.Join(err, fmt.Errorf("the daemon of %s does not exit", p.w.root))
		}
	}
	return errors.Join(err, os.RemoveAll(p.w.root), os.RemoveAll(p.clone.server))
}
