package daemon

import (
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// A git command that finds the index locked fails or, like git status, does not store its results. The daemon locks the index
// too (fillIndex), but can wait until no git command runs, and hold new ones back meanwhile.

// passes is how long a git command is assumed to write the index. One that runs longer is waiting in a pager.
const passes = 10 * time.Minute

// gitPass records the git commands that have looked up .git and still run. Its methods are safe for concurrent use, except
// forget.
type gitPass struct {
	mu   sync.Mutex
	seen map[string]pass // by proc.Identity; guarded by mu
}

// pass is one recorded git command.
type pass struct {
	pid uint32
	at  time.Time // time of its first lookup of .git
}

// let blocks while bar holds git commands back, and then records process pid if its argv is that of a git command. Processes of
// other PID namespaces are not recorded, since the kernel sends no pid for them.
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

// forget removes the commands that have exited. The caller holds g.mu.
func (g *gitPass) forget() {
	for name, p := range g.seen {
		if proc.Identity(int(p.pid)) != name {
			delete(g.seen, name)
		}
	}
}

// bar makes git commands block in let until the caller calls release. ok is false, and release is nil, if a git command runs.
// g.mu stays locked until release, so the caller must be brief.
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
