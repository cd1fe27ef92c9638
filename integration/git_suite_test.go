package integration

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// gitScenarios are all scenarios that start from the fixture, by topic.
var gitScenarios = []struct {
	about     string
	scenarios []scenario
}{
	{"Looking", lookScenarios},
	{"Changing", changeScenarios},
	{"Branches", branchScenarios},
	{"Repositories", repoScenarios},
	{"Empty repositories", emptyScenarios},
}

// chosen keeps the scenarios whose names match AFS_SCENARIO.
func chosen(all []scenario) []scenario {
	re := regexp.MustCompile(os.Getenv("AFS_SCENARIO"))
	return slices.DeleteFunc(slices.Clone(all), func(s scenario) bool { return !re.MatchString(s.name) })
}

// runScenarios runs each scenario as a subtest, several at a time, and returns their costs.
func (x *gitFixture) runScenarios(t *testing.T, about string, scenarios []scenario) []cost {
	t.Helper()
	costs := make([]cost, len(scenarios))
	t.Run(about, func(t *testing.T) {
		for i, s := range scenarios {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				p, err := x.pair(s)
				if err != nil {
					t.Fatal(err)
				}
				costs[i], err = p.do(s)
				if err != nil {
					t.Error(err)
				}
				t.Logf("%d requests, %d blobs", costs[i].requests, costs[i].blobs)
				if t.Failed() && !x.clones {
					t.Logf("the daemon's log:\n%s", p.log())
				}
				if err := p.end(); err != nil {
					t.Error(err)
				}
			})
		}
	})
	return costs
}

// Git commands have the same effects and output in a mount as in a clone.
func TestGitScenarios(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x := newGitFixture(w, object.SHA1)
	empty := newWorld(t)
	e := empty.gitFixture(empty.repo("empty.git", object.SHA1))
	x.clones = os.Getenv("AFS_GIT_CLONES") != ""
	e.clones = x.clones
	var costs [][]cost
	for _, g := range gitScenarios {
		f := x
		if g.about == "Empty repositories" {
			f = e
		}
		costs = append(costs, f.runScenarios(t, g.about, chosen(g.scenarios)))
	}
	if os.Getenv("AFS_SCENARIO") == "" && !x.clones {
		checkTable(t, costs)
	}
}

// The other object format, with some of the scenarios of each kind.
func TestGitScenariosInSHA256(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x := newGitFixture(w, object.SHA256)
	for _, g := range gitScenarios[:len(gitScenarios)-1] {
		var some []scenario
		for i := 3; i < len(g.scenarios); i += 12 {
			some = append(some, g.scenarios[i])
		}
		x.runScenarios(t, g.about, chosen(some))
	}
}
