package integration

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"

	"github.com/artifactfs/artifactfs/integration/harness/gitea"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/integration/harness/workday"
	"github.com/artifactfs/artifactfs/server/client"
)

// journey is the way of one session through all commands, on two hosts: the agent works on the first one, which is
// killed, and the session continues on the second one. A reviewer uses the first host.
type journey struct {
	*testing.T             // of the present step
	first, second *world   // hosts
	remote        string   // mounted repository, as an argument of mount
	plain         string   // its URL for stock git
	flags         []string // flags of mount
	saved         string   // session remote, as other hosts name it
	api           *client.Client
	space         string // repository of the session remote on the server of api; "": it is not there
	embedded      bool   // the session remote is below the state directory of the first host
	hosted        bool   // the mounted repository is on the server of api
	url           string // address of the server

	work, again, fork mounted
	state             workday.State // of the working tree at the last step that has changed it
	link              string        // of the request for an approval
	to                string        // flag --to that reviewers need; "": none
}

// journeyColumns are the kinds of session remotes.
var journeyColumns = []struct {
	name    string
	prepare func(t *testing.T) *journey
}{
	{"embedded", func(t *testing.T) *journey {
		j := newJourney(t, nil)
		j.embedded = true
		j.saved = filepath.Join(j.first.state, "mounts", "work", "session.git")
		return j
	}},
	{"path", func(t *testing.T) *journey { return newJourney(t, savedBy("path")) }},
	{"origin", func(t *testing.T) *journey {
		j := newJourney(t, nil)
		j.saved, j.flags = j.plain, []string{"--session-remote", "origin"}
		return j
	}},
	{"create", func(t *testing.T) *journey {
		j := hostedJourney(t, "app")
		j.flags = []string{"--create"}
		return j
	}},
	{"create=session-remote", func(t *testing.T) *journey {
		j := hostedJourney(t, "work")
		j.flags = []string{"--create=session-remote", "--session-remote", "team/work"}
		j.remote = openToAll(j.first)
		j.plain, j.hosted = j.remote, false
		return j
	}},
	{"create=both", func(t *testing.T) *journey {
		j := hostedJourney(t, "work")
		j.flags = []string{"--create=both", "--session-remote", "team/work"}
		return j
	}},
	{"http", func(t *testing.T) *journey { return newJourney(t, savedBy("http")) }},
	{"ssh", func(t *testing.T) *journey { return newJourney(t, savedBy("ssh")) }},
	{"gitea", giteaJourney},
}

// openToAll serves the repository of newTravelled over HTTP, with pushes, and returns its URL.
func openToAll(w *world) string {
	w.Helper()
	w.git(filepath.Join(w.repos, "r.git"), "config", "http.receivepack", "true")
	return w.serve(gittest.ServerOptions{}).URL("r.git")
}

func newJourney(t *testing.T, save func(*journey)) *journey {
	t.Helper()
	w, _ := newTravelled(t)
	j := &journey{T: t, first: w}
	j.remote = openToAll(w)
	j.plain = j.remote
	if save != nil {
		save(j)
	}
	j.hosts()
	return j
}

// savedBy returns a function that makes an empty session remote for one of the transports of sessionRemote.
func savedBy(scheme string) func(*journey) {
	return func(j *journey) {
		j.saved = j.first.sessionRemote(scheme, nil).arg
		j.flags = []string{"--session-remote", j.saved}
	}
}

// hostedJourney makes a journey with a server. Its session remote is team/NAME there.
func hostedJourney(t *testing.T, name string) *journey {
	t.Helper()
	w, c, api := hosted(t)
	j := &journey{T: t, first: w, api: api, url: c.proxy.url(), space: name, hosted: true, remote: "team/app",
		plain: authorized(w)}
	j.saved = j.url + "/git/team/" + name + ".git"
	j.hosts()
	return j
}

func giteaJourney(t *testing.T) *journey {
	source := os.Getenv("AFS_GITEA")
	if source == "" {
		gittest.Skip(t, "gitea: set AFS_GITEA to a directory in which scripts/forge.sh has built it")
	}
	var token string
	j := newJourney(t, func(j *journey) {
		dir := filepath.Join(j.first.root, "gitea")
		check(t, os.Mkdir(dir, 0o755))
		s := must[*gitea.Server](t)(gitea.Start(t.Context(), source, dir))
		t.Cleanup(func() {
			j.first.afs("unmount", "--all")
			s.Close()
		})
		login := func(name string) string {
			check(t, s.Create(t.Context(), name))
			return strings.Replace(s.Repo(gitea.User, name), "://", "://"+gitea.User+":"+s.Token+"@", 1)
		}
		j.remote, j.saved, token = login("app"), login("work"), s.Token
		j.plain, j.flags = j.remote, []string{"--session-remote", j.saved}
		j.first.git(filepath.Join(j.first.repos, "r.git"), "push", "--quiet", j.remote, "main")
	})
	for _, w := range []*world{j.first, j.second} { // links have no passwords
		w.env = append(w.env, "ARTIFACTFS_TOKEN="+token)
	}
	return j
}

// hosts makes the second host, and gives both a home.
func (j *journey) hosts() {
	j.Helper()
	j.second = j.first.elsewhere()
	for _, w := range []*world{j.first, j.second} {
		home := w.state + ".home"
		check(j.T, os.Mkdir(home, 0o755))
		w.env = append(slices.Clone(w.env), "HOME="+home)
	}
}

// dir returns a directory below that of the column.
func (j *journey) dir(name string) string { return filepath.Join(j.first.root, name) }

// TestJourneys goes the same way with every kind of session remote, and prints a table of what worked: each step has
// the same result everywhere, or is refused as a page of the documents says.
func TestJourneys(t *testing.T) {
	t.Parallel()
	cells := map[string]string{}
	var mu sync.Mutex
	t.Run("on", func(t *testing.T) {
		for _, column := range journeyColumns {
			t.Run(column.name, func(t *testing.T) {
				t.Parallel()
				j := column.prepare(t)
				for _, step := range journeySteps {
					cell := "BAD"
					t.Run(step.name, func(t *testing.T) {
						of := *j
						of.T, of.first, of.second = t, j.first.in(t), j.second.in(t)
						for _, m := range []*mounted{&of.work, &of.again, &of.fork} {
							if m.w != nil {
								m.w = m.w.in(t)
							}
						}
						result := step.do(&of)
						first, second, test := j.first, j.second, j.T
						*j = of
						j.first, j.second, j.T = first, second, test
						if !t.Failed() {
							cell = result
						}
					})
					mu.Lock()
					cells[column.name+" "+step.name] = cell
					mu.Unlock()
				}
			})
		}
	})
	var table bytes.Buffer
	out := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	for _, column := range journeyColumns {
		fmt.Fprint(out, "\t", column.name)
	}
	for _, step := range journeySteps {
		fmt.Fprint(out, "\n", step.name)
		for _, column := range journeyColumns {
			cell, ran := cells[column.name+" "+step.name]
			if !ran {
				cell = "not run"
			}
			fmt.Fprint(out, "\t", cell)
		}
	}
	out.Flush()
	t.Logf("steps and session remotes:\n%s", table.String())
}
