package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/internal/metrics/metricstest"
	"github.com/artifactfs/artifactfs/server/quota"
)

const monitoringDir = "../deploy/monitoring"

// watched is a daemon with two mounts whose metrics have a sample of every family. The session of the mount pushes to a
// session remote, and reads of the mount brief fail after a second without an answer of the remote.
type watched struct {
	*world
	address      string // of the metrics
	token        string // path of the file with the token for the metrics
	remote       served
	sessions     string // path of the session remote
	mount, brief mounted
}

func newWatched(t *testing.T) *watched {
	t.Helper()
	w := &watched{world: newWorld(t)}
	for _, name := range []string{"mounted.git", "brief.git"} {
		files := map[string]gittest.File{}
		for i := range 20 {
			files[fmt.Sprintf("dir%d/file", i)] = gittest.File{Data: fmt.Appendf(nil, "content %d of %s\n", i, name)}
		}
		w.commit(w.repo(name, object.SHA1), files)
	}
	w.remote = w.serve(gittest.ServerOptions{})
	w.sessions, w.token, w.address = filepath.Join(w.root, "sessions.git"), filepath.Join(w.root, "token"),
		"127.0.0.1:"+freePort(t)
	w.git(w.root, "init", "-q", "--bare", w.sessions)
	check(t, os.WriteFile(w.token, []byte("metrics-secret\n"), 0o600))
	w.startDaemon("--metrics", w.address, "--metrics-token-file", w.token)
	// Prefetching would fetch what the readers of the test shall wait for.
	w.mount = w.bare(w.remote.URL("mounted.git"), "--session-remote", w.sessions, "--wait", "git")
	w.brief = w.bare(w.remote.URL("brief.git"), "--timeout", "1s", "--wait", "git")
	for _, m := range []mounted{w.mount, w.brief} {
		must[[]byte](t)(os.ReadFile(m.path("dir0/file")))
		check(t, os.WriteFile(m.path("new"), []byte("new\n"), 0o644))
	}
	w.ok("checkpoint", w.mount.Dir, "--sync")
	return w
}

// worker returns the worker that answers the status. During a takeover it waits for the successor.
func (w *watched) worker() int {
	w.Helper()
	pid := w.daemonStatus().PID
	if pid == 0 {
		w.Fatal("no daemon serves the mounts")
	}
	return pid
}

// freePort returns a port of the loopback at which no process listens.
func freePort(t testing.TB) string {
	t.Helper()
	l := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// families reads the metrics with the token.
func (w *watched) families() map[string]*metricstest.Family {
	w.Helper()
	request := must[*http.Request](w)(http.NewRequest("GET", "http://"+w.address+"/metrics", nil))
	request.Header.Set("Authorization", "Bearer metrics-secret")
	answer := must[*http.Response](w)(http.DefaultClient.Do(request))
	defer answer.Body.Close()
	text := must[[]byte](w)(io.ReadAll(answer.Body))
	if answer.StatusCode != http.StatusOK {
		w.Fatalf("get metrics: %s: %s", answer.Status, text)
	}
	return must[map[string]*metricstest.Family](w)(metricstest.Parse(string(text)))
}

// quotaFamilies returns the metrics of a server about quotas.
func quotaFamilies(t testing.TB) map[string]*metricstest.Family {
	t.Helper()
	var text bytes.Buffer
	out := metrics.NewWriter(&text)
	(*quota.Keeper)(nil).Metrics(out)
	check2(t, out.Flush())
	return must[map[string]*metricstest.Family](t)(metricstest.Parse(text.String()))
}

// panelExpressions returns the expressions of the dashboard by the title of their panel. Variables of Grafana have the
// values that Grafana would insert.
func panelExpressions(t testing.TB) map[string][]string {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	check2(t, json.Unmarshal(must[[]byte](t)(os.ReadFile(filepath.Join(monitoringDir, "dashboard.json"))), &dashboard))
	all := map[string][]string{}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			all[p.Title] = append(all[p.Title], strings.NewReplacer("$instance", ".*", "$__rate_interval",
				"1m").Replace(target.Expr))
		}
	}
	return all
}

var (
	metricName   = regexp.MustCompile(`\b(?:artifactfs|process|go)_[a-z_]+`)
	selector     = regexp.MustCompile(`\b([a-z_]+)\{([^}]*)\}`)
	labelMatcher = regexp.MustCompile(`([a-z_]+)(=~|!~|!=|=)['"]([^'"]*)['"]`)
)

// TestMonitoringNames compares the metrics and labels that the alert rules, the dashboard and the runbook name with a
// scrape.
func TestMonitoringNames(t *testing.T) {
	w := newWatched(t)
	all := w.families()
	maps.Copy(all, quotaFamilies(t)) // of a server
	texts := map[string]string{}
	for _, name := range []string{"alerts.yml", "alerts_test.yml"} {
		texts[name] = string(must[[]byte](t)(os.ReadFile(filepath.Join(monitoringDir, name))))
	}
	for title, expressions := range panelExpressions(t) {
		texts["panel "+title] = strings.Join(expressions, "\n")
	}
	for _, page := range []string{"runbook.md", "fleet.md", "operating.md"} {
		texts[page] = string(must[[]byte](t)(os.ReadFile("../doc/" + page)))
	}
	used := map[string]bool{}
	for where, text := range texts {
		for _, name := range metricName.FindAllString(text, -1) {
			family := all[name]
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if cut, is := strings.CutSuffix(name, suffix); is && family == nil {
					family = all[cut]
				}
			}
			// Pages shorten names of a family to their end, or end them with an underscore before an asterisk.
			if family == nil && strings.HasSuffix(name, "_") && strings.HasSuffix(where, ".md") {
				continue
			}
			used[strings.TrimSuffix(name, "_bucket")] = true
			if family == nil {
				t.Errorf("%s: metric %s does not exist", where, name)
			}
		}
		if strings.HasSuffix(where, "_test.yml") {
			continue // its instances and values are inventions
		}
		for _, s := range selector.FindAllStringSubmatch(text, -1) {
			for _, m := range labelMatcher.FindAllStringSubmatch(s[2], -1) {
				if label := m[1]; label != "job" && label != "instance" && !hasLabel(all, s[1], label, m[2], m[3]) {
					t.Errorf("%s: no sample of %s has %s", where, s[1], m[0])
				}
			}
		}
	}
	if len(used) < 50 {
		t.Errorf("found %d metrics in the files, want at least 50: %v", len(used), slices.Sorted(maps.Keys(used)))
	}
	runbook := texts["runbook.md"]
	for _, alert := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(texts["alerts.yml"], -1) {
		if !strings.Contains(texts["alerts_test.yml"], "alertname: "+alert[1]+"\n") {
			t.Errorf("alert %s has no test", alert[1])
		}
		if !strings.Contains(texts["alerts.yml"], "runbook: doc/runbook.md#"+strings.ToLower(alert[1])+"\n") ||
			!strings.Contains(runbook, "\n### "+alert[1]+"\n") {
			t.Errorf("alert %s has no entry in the runbook", alert[1])
		}
	}
}

// hasLabel reports whether a sample of the metric fits the matcher.
func hasLabel(all map[string]*metricstest.Family, metric, label, op, value string) bool {
	f := all[metric]
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if f == nil {
			f = all[strings.TrimSuffix(metric, suffix)]
		}
	}
	if f == nil {
		return false
	}
	return slices.ContainsFunc(f.Samples, func(s metricstest.Sample) bool {
		got, has := s.Labels[label]
		matches := got == value
		if strings.HasSuffix(op, "~") {
			matches = regexp.MustCompile("^(?:" + value + ")$").MatchString(got)
		}
		return has && matches != strings.HasPrefix(op, "!")
	})
}

// prometheus is a running Prometheus that scrapes a daemon.
type prometheus struct {
	testing.TB
	address string
}

// quick are the changes that make the rules judge seconds instead of minutes: the test cannot wait for five minutes.
var quick = strings.NewReplacer("for: 5m", "for: 1s", "for: 2m", "for: 1s", "for: 10m", "for: 1s",
	"for: 15m", "for: 1s",
	"_pending[5m]", "_pending[2s]", "pending_seconds > 300", "pending_seconds > 2")

// startPrometheus starts a Prometheus with the alert rules, and ends it with the test.
func (w *watched) startPrometheus(program string) *prometheus {
	w.Helper()
	dir := w.place("prometheus")
	check2(w, os.Mkdir(dir, 0o755))
	rules := quick.Replace(string(must[[]byte](w)(os.ReadFile(filepath.Join(monitoringDir, "alerts.yml")))))
	check2(w, os.WriteFile(filepath.Join(dir, "alerts.yml"), []byte(rules), 0o644))
	check2(w, os.WriteFile(filepath.Join(dir, "prometheus.yml"), fmt.Appendf(nil, `
global: {scrape_interval: 250ms, evaluation_interval: 250ms, scrape_timeout: 250ms}
rule_files: [alerts.yml]
scrape_configs:
  - job_name: artifactfs
    authorization: {credentials_file: %s}
    static_configs: [{targets: ["%s"]}]
`, w.token, w.address), 0o644))
	p := &prometheus{w.world, "127.0.0.1:" + freePort(w)}
	cmd := exec.Command(program, "--config.file", filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path",
		filepath.Join(dir, "data"),
		"--web.listen-address", p.address, "--log.level", "warn")
	log := must[*os.File](w)(os.Create(filepath.Join(dir, "log")))
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	check2(w, cmd.Start())
	w.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	w.until("Prometheus is ready", func() bool {
		answer, err := http.Get("http://" + p.address + "/-/ready")
		if err != nil {
			return false
		}
		answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	return p
}

// get reads data of the API.
func (p *prometheus) get(path string, data any) {
	p.Helper()
	answer := must[*http.Response](p)(http.Get("http://" + p.address + path))
	defer answer.Body.Close()
	text := must[[]byte](p)(io.ReadAll(answer.Body))
	if err := json.Unmarshal(text, &struct{ Data any }{data}); err != nil || answer.StatusCode != http.StatusOK {
		p.Errorf("get %s from Prometheus: %s, %v: %s", path, answer.Status, err, text)
	}
}

// query returns the number of results of an expression.
func (p *prometheus) query(expression string) int {
	p.Helper()
	var data struct{ Result []any }
	p.get("/api/v1/query?query="+url.QueryEscape(expression), &data)
	return len(data.Result)
}

// firing returns the names of the alerts that fire, and of those that would fire after their time.
func (p *prometheus) firing() (names []string) {
	p.Helper()
	var data struct {
		Alerts []struct{ Labels map[string]string }
	}
	p.get("/api/v1/alerts", &data)
	for _, a := range data.Alerts {
		names = append(names, a.Labels["alertname"])
	}
	return names
}

// fires waits until the alerts fire.
func (p *prometheus) fires(w *watched, names ...string) {
	p.Helper()
	for _, name := range names {
		w.until(fmt.Sprintf("alert %s fires", name), func() bool {
			return slices.Contains(p.firing(), name)
		})
	}
}

// TestMonitoringWithPrometheus checks the rules and the dashboard with a real Prometheus that scrapes a real daemon, in
// which the test provokes the conditions.
func TestMonitoringWithPrometheus(t *testing.T) {
	program, err := exec.LookPath("prometheus")
	promtool, err2 := exec.LookPath("promtool")
	if err != nil || err2 != nil {
		gittest.Skip(t, "prometheus is not installed (make monitoring-test downloads it)")
	}
	t.Parallel()
	for _, args := range [][]string{{"check", "rules", "alerts.yml"},
		{"check", "config", "--syntax-only", "prometheus.yml"}, {"test", "rules", "alerts_test.yml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = monitoringDir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
	w := newWatched(t)
	p := w.startPrometheus(program)
	w.until("a rate can be computed", func() bool { return p.query(`rate(process_cpu_seconds_total[2s])`) > 0 })
	w.until("the rules are evaluated", func() bool { return p.query(`scrape_samples_scraped offset 2s`) > 0 })
	for _, name := range p.firing() {
		if !strings.HasPrefix(name, "ArtifactfsDisk") { // the disk of the machine may be full
			t.Errorf("alert %s fires although nothing is wrong", name)
		}
	}

	// The session remote refuses every push.
	hook := filepath.Join(w.sessions, "hooks", "pre-receive")
	check(t, os.MkdirAll(filepath.Dir(hook), 0o755))
	check(t, writeProgram(hook, []byte("#!/bin/sh\nexit 1\n")))
	check(t, os.WriteFile(w.mount.path("new"), []byte("other\n"), 0o644))
	w.ok("checkpoint", w.mount.Dir)
	p.fires(w, "ArtifactfsSessionNotPushed", "ArtifactfsSessionFailing")

	// The remote does not answer: one reader waits, another gets an error.
	cut := w.remote.Inject(gittest.Fault{Kind: gittest.Cut})
	waits := w.start("cat", w.mount.path("dir5/file"))
	failed := w.start("cat", w.brief.path("dir5/file"))
	p.fires(w, "ArtifactfsMountDegraded", "ArtifactfsRemoteUnreachable", "ArtifactfsProgramsWait",
		"ArtifactfsProgramsGetErrors",
		"ArtifactfsRemoteErrors")
	if err := failed.Wait(); err == nil {
		t.Error("read of a remote that does not answer succeeded")
	}
	// Every panel has data in this state.
	for title, expressions := range panelExpressions(t) {
		for _, e := range expressions {
			if p.query(e) == 0 {
				t.Errorf("panel %q has no data: %s", title, e)
			}
		}
	}
	cut.Remove()
	if err := waits.Wait(); err != nil {
		t.Errorf("reader that waited for the remote: %v: %s", err, &waits.out)
	}
	check(t, os.Remove(hook))
	w.ok("sync", w.mount.Dir)
	w.until("the alerts end", func() bool {
		now := p.firing()
		return !slices.Contains(now, "ArtifactfsSessionNotPushed") && !slices.Contains(now, "ArtifactfsSessionFailing") &&
			!slices.Contains(now, "ArtifactfsMountDegraded") && !slices.Contains(now, "ArtifactfsProgramsWait")
	})

	// Workers that crash, a worker that hangs, and an upgrade to a program that cannot serve.
	for range 4 {
		before := w.worker()
		check(t, syscall.Kill(before, syscall.SIGKILL))
		w.until("a successor serves", func() bool { return w.worker() != before })
	}
	p.fires(w, "ArtifactfsWorkerRestarts")
	check(t, syscall.Kill(w.worker(), syscall.SIGSTOP))
	p.fires(w, "ArtifactfsWorkerHung")
	fake := filepath.Join(w.root, "fake")
	check(t, writeProgram(fake, []byte("#!/bin/sh\nexit 7\n")))
	client := must[*control.Client](t)(control.Dial(t.Context(), control.DaemonSocket(w.state)))
	if err := client.Upgrade(t.Context(), control.UpgradeRequest{Executable: fake}); err == nil {
		t.Error("upgrade to a program that cannot serve succeeded")
	}
	p.fires(w, "ArtifactfsUpgradeReverted")

	// Rules that cannot be evaluated are no rules.
	var rules struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	p.get("/api/v1/rules", &rules)
	for _, r := range rules.Groups[0].Rules {
		if r.Health != "ok" {
			t.Errorf("rule %s: %s: %s", r.Name, r.Health, r.LastError)
		}
	}
	w.ok("unmount", "--all") // also ends the daemon
	p.fires(w, "ArtifactfsDown")
}

// TestTop shows a host that answers and one that does not.
func TestTop(t *testing.T) {
	w := newWatched(t)
	dead := "127.0.0.1:" + freePort(t)
	list := filepath.Join(w.root, "hosts.json")
	check(t, os.WriteFile(list, fmt.Appendf(nil, `[{"targets": [%q, %q]}]`, w.address, dead), 0o644))
	r := w.afs("top", "--hosts", list, "--metrics-token-file", w.token, "--once", "--json", "--interval", "0.5")
	var got struct {
		Hosts []struct {
			Host, Error, Version string
			Up                   bool
			Mounts, Degraded     int
			MemoryBytes          int64 `json:"memory_bytes"`
			Rates                *struct{ Processor float64 }
		}
	}
	first, _, _ := strings.Cut(r.stdout, "\n")
	check(t, json.Unmarshal([]byte(first), &got))
	if r.code != control.ExitFailed || len(got.Hosts) != 2 {
		t.Fatalf("top of two hosts: %s", r)
	}
	for _, h := range got.Hosts {
		switch h.Host {
		case w.address:
			if !h.Up || h.Mounts != 2 || h.Degraded != 0 || h.MemoryBytes < 1<<20 || h.Rates == nil || h.Version == "" {
				t.Errorf("host that answers: got %+v", h)
			}
		case dead:
			if h.Up || h.Error != "connection refused" {
				t.Errorf("host that does not answer: got %+v", h)
			}
		}
	}
	r = w.afs("top", "--hosts", list, "--metrics-token-file", w.token, "--once", "--interval", "0.5")
	lines := strings.Split(r.stdout, "\n")
	if len(lines) != 4 || !strings.HasSuffix(lines[1], dead+": connection refused") ||
		!strings.HasSuffix(lines[2], w.address) {
		t.Errorf("top of two hosts, as text: %s", r)
	}
	if out := w.ok("top", "--once", "--interval", "0.1"); !strings.Contains(out, w.mount.Dir) ||
		!strings.Contains(out, w.brief.Dir) {
		t.Errorf("top of this host: got %q", out)
	}
	if out := w.ok("top", "--hosts", w.address, "--metrics-token-file", w.token, "--once", "--interval",
		"0.1"); !strings.Contains(out, w.address) {
		t.Errorf("top of one host: got %q", out)
	}
	w.refusal(w.afs("top", "--all-hosts"), control.ExitUsage, "no list of hosts in", "artifactfs top --hosts LIST")
}
