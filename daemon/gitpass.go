package daemon

import (
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// A git command that comes upon the lock of the index ends with an error, or forgets what it has found out, as `git status`
// does. We need that lock as well, and can wait.

const passes = 10 * time.Minute // for which a command is one that may write the index: what lasts longer sits in a pager

// gitPass knows the git commands that have looked for `.git` and are at work.
type gitPass struct {
	mu   sync.Mutex
	seen map[string]pass // by their processes' names
}

type pass struct {
	pid uint32
	at  time.Time // when it was seen first
}

// let waits while commands are barred, and notes a process if it is one. Those of other PID namespaces have no number here.
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

// forget drops those that have ended.
func (g *gitPass) forget() {
	for name, p := range g.seen {
		if proc.Identity(int(p.pid)) != name {
			delete(g.seen, name)
		}
	}
}

// bar lets no command pass until release; ok is false if one is at work.
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
