package daemon

import (
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// A git command that finds the index locked fails, or does not store what it has found out, as `git status`. The daemon
// locks the index too (fillIndex), and can wait until no git command runs.

// passes is for how long a git command may still write the index. One that runs longer waits in a pager.
const passes = 10 * time.Minute

// gitPass knows the git commands that have looked up `.git` and still run.
type gitPass struct {
	mu   sync.Mutex
	seen map[string]pass // by agent.ProcessName
}

type pass struct {
	pid uint32
	at  time.Time // of its first lookup
}

// let waits while commands are barred, and records a process if it is a git command. Processes of other PID namespaces are
// not recorded: they have no pid here.
func (g *gitPass) let(pid uint32, argv []string) {
	base := filepath.Base(argv[0])
	name := proc.Identity(int(pid))
	g.mu.Lock()
	defer g.mu.Unlock()
	if base != "git" && !strings.HasPrefix(base, "git-") || name == "" {
		return
	}
	g.forget()
	if g.seen == nil {
		g.seen = map[string]pass{}
	}
	if _, ok := g.seen[name]; !ok {
		g.seen[name] = pass{pid, time.Now()}
	}
}

// forget drops the commands that have ended. g.mu is held.
func (g *gitPass) forget() {
	for name, p := range g.seen {
		if proc.Identity(int(p.pid)) != name {
			delete(g.seen, name)
		}
	}
}

// bar makes git commands wait in let until release is called. ok is false, and release nil, if one runs.
func (g *gitPass) bar() (release func(), ok bool) {
	g.mu.Lock()
	g.forget()
	for _, p := range g.seen {
		if time.Since(p.at) < passes {
			g.mu.Unlock()
			return nil, false
		}
	}
	return g.mu.Unlock, true
}
