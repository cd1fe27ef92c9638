package gitside

import (
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// Git writes its index under a lock. A git command that finds the index locked fails, or, like git status, does not store its
// results. The daemon locks the index too (Index.Fill). To avoid conflicts, it does so only while no git command runs, and delays
// new git commands until it has released the lock.

// passes is how long after its start a git command is assumed to use the index. A command that runs longer is probably waiting
// in a pager.
const passes = 10 * time.Minute

// gitPass records the running git commands that have looked up .git. Its methods are safe for concurrent use, except forget.
type gitPass struct {
	mu   sync.Mutex
	seen map[string]pass // by proc.Identity; guarded by mu
}

// pass is one recorded git command.
type pass struct {
	pid uint32
	at  time.Time // time of its first lookup of .git
}

// let records the process pid if argv is the command line of a git command. While bar holds git commands back, let blocks.
// Processes of other PID namespaces are not recorded, because the kernel sends no pid for them.
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

// bar makes git commands block in let until the caller calls release. If a git command is running, bar returns nil and false. It
// holds g.mu until release is called, so the caller must call release soon.
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
