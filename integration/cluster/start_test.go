package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// repositoriesVariable names the environment variable with the bare repositories whose pods TestPodStart starts,
// separated by spaces.
const repositoriesVariable = "AFS_CLUSTER_REPOSITORIES"

const (
	startRTT  = 50 * time.Millisecond
	startRuns = 3
	// startLimit is the maximum time for a start: a clone of 143,000 files takes minutes on a busy machine.
	startLimit = 15 * time.Minute
)

// TestPodStart measures the time from the creation of a pod until its main container has read a file, with a volume and
// with a clone.
func TestPodStart(t *testing.T) {
	w := start(t)
	repos := strings.Fields(os.Getenv(repositoriesVariable))
	if len(repos) == 0 {
		text := "NOT MEASURED: set " + repositoriesVariable + " to the paths of bare repositories"
		summary.add(t, "pod start", "%s", text)
		t.Skip(text)
	}
	table := fmt.Sprintf("pod start: from creation to the first read in the main container (round trip %v, median of %d)",
		startRTT, startRuns)
	for _, repo := range repos {
		dir := t.TempDir()
		check(t, os.Symlink(repo, filepath.Join(dir, "app.git")))
		base := serve(t, gittest.ServerOptions{Root: dir, RTT: startRTT})
		paths := strings.Split(gittest.Must(t, repo, "-c", "safe.directory=*", "ls-tree", "-r", "--name-only", "HEAD"), "\n")
		s := starter{world: w, url: base.URL("app.git"), file: paths[len(paths)/2]}
		name := fmt.Sprintf("%s (%d files)", filepath.Base(repo), len(paths))
		report := func(kind string, run func() time.Duration) {
			var all []time.Duration
			before := load()
			for range startRuns {
				all = append(all, run())
				t.Logf("%s, %s: %.2f s", name, kind, all[len(all)-1].Seconds())
			}
			slices.Sort(all)
			summary.add(t, table, "%-28s %-46s %6.2f s (%.2f - %.2f), load %s to %s", name, kind,
				all[len(all)/2].Seconds(), all[0].Seconds(), all[len(all)-1].Seconds(), before, load())
		}
		report("volume, nothing of the repository on the node", func() time.Duration {
			w.forget(t)
			return s.volume(t)
		})
		report("volume, the node has had a pod of it", func() time.Duration { return s.volume(t) })
		report("emptyDir and git clone --depth 1", func() time.Duration { return s.clone(t) })
	}
}

// forget removes all that the node has of repositories.
func (w *world) forget(t *testing.T) {
	t.Helper()
	_, err := w.Kubectl("delete", "daemonset", "-n", namespace, "--all")
	check(t, err)
	check(t, w.WaitGone(context.Background(), namespace, ""))
	left, err := filepath.Glob(stateDir + "/*")
	check(t, err)
	for _, path := range left {
		check(t, os.RemoveAll(path))
	}
	check(t, w.Apply(deployment(t)))
	w.deployed(t)
	time.Sleep(2 * time.Second) // until the node is idle
}

// starter starts pods that read one file of a repository.
type starter struct {
	*world
	url, file string
}

func (s starter) command() string {
	return "head -c 100 '/work/" + s.file + "' >/dev/null && touch /meter/started && sleep 1000000"
}

func (s starter) volume(t *testing.T) time.Duration {
	return s.run(t, pod{name: "starter", command: s.command(), attributes: map[string]string{"remote": s.url}}.yaml())
}

func (s starter) clone(t *testing.T) time.Duration {
	p := pod{name: "starter", command: s.command(), volume: "emptyDir: {}"}
	p.spec = `  initContainers:
  - name: clone
    image: ` + nodeImage + `
    imagePullPolicy: Never
    command: [git, clone, -q, --depth=1, "` + s.url + `", /work]
    volumeMounts:
    - {name: work, mountPath: /work}
`
	return s.run(t, p.yaml())
}

// run creates a pod, waits until it has read the file, and removes it.
func (s starter) run(t *testing.T, yaml string) time.Duration {
	t.Helper()
	mark := filepath.Join(meterDir, "started")
	if err := os.Remove(mark); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	begin := time.Now()
	check(t, s.Apply(yaml))
	var took time.Duration
	check(t, s.within(startLimit, func() error {
		info, err := os.Stat(mark)
		if err == nil {
			took = info.ModTime().Sub(begin)
		}
		return err
	}))
	s.remove(t, "app=starter")
	return took
}
