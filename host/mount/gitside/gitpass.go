package gitside

import (
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// Git locks its index to write it. If another process holds the lock, a git command fails or, like git status, does not
// store its results. The daemon also locks the index when it completes the index (Index.Fill). To avoid conflicts, the
// daemon locks the index only while no git command is running, and delays new git commands until it has released the
// lock.

// passes is the time after the start of a git command for which it is assumed to use the index. A command that runs
// longer is probably waiting in a pager.
const passes = 10 * time.Minute

// gitPass records the running git commands that have looked up ".git". The methods may be called from any goroutine.
// The caller of forget must hold mu.
type gitPass struct {
	mu   sync.Mutex
	seen map[string]pass // running commands, by proc.Identity; protected by mu
}

// pass is one recorded git command.
type pass struct {
	pid uint32
	at  time.Time // time at which the command first looked up .git
}

// let records that the process pid has looked up ".git", if its command line argv is that of a git command. While bar
// delays git commands, let blocks. It does not record processes of other PID namespaces, because the kernel sends 0 as
// their process ID.
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

// forget removes the records of git commands that have ended. The caller holds g.mu.
func (g *gitPass) forget() {
	for name, p := range g.seen {
		if proc.Identity(int(p.pid)) != name {
			delete(g.seen, name)
		}
	}
}

// bar makes git commands wait in the method let until the caller calls release. If a git command is running, bar
// returns false. Because bar holds g.mu until then, release must be called soon.
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
