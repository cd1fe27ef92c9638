package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/client"
	"github.com/artifactfs/artifactfs/internal/harness/chrome"
	"github.com/artifactfs/artifactfs/internal/harness/gittest"
)

// A reviewer who has only a link with a token in its fragment opens it in a browser, copies the command from the page, and runs it on a
// machine that knows neither the server nor the session. The fork is then mounted with the files of the checkpoint. The test logs the time
// from the link to the files.
func TestFromLinkToRunningFork(t *testing.T) {
	t.Parallel()
	w, c, api := hosted(t)
	tab := chrome.Start(t).Tab(t)
	m := w.bare("team/app", "--create", "--session", "work", "--wait", "git")
	w.sh(m.Dir, "echo one >one.txt && git add one.txt && git commit -qm 'one file' && mkdir new && echo two >new/two.txt")
	p := m.checkpoint("--sync", "-m", "two files")
	w.sh(m.Dir, "rm one.txt && echo three >new/three.txt")
	m.checkpoint("--sync", "-m", "after it")

	for _, scope := range []string{client.Read, client.Write} {
		token := must[client.NewToken](t)(api.CreateToken(t.Context(), "team", client.CreateToken{Repo: "app", Scope: scope, Actor: "reviewer"}))
		o := w.elsewhere()
		dir := w.place("reviewer")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}

		begin := time.Now()
		tab.Open(c.proxy.url() + "/ui/team/app/s/work?at=" + p.ID + "#token=" + token.Plaintext)
		tab.Until(`document.querySelector("form[action$='/command'] button")`)
		tab.Loads(func() { tab.Click("form[action$='/command'] button") })
		shown := time.Now()
		tab.Click("[data-copy]")
		tab.Until(`/Copied|Selected/.test(document.getElementById("said").textContent)`)
		text := tab.Text(`document.querySelector(".commands code").textContent`)
		ctx, cancel := context.WithTimeout(t.Context(), commandTime)
		defer cancel()
		cmd := exec.CommandContext(ctx, "sh", "-ec", text)
		cmd.Dir, cmd.Env = dir, append(gittest.Env(), "ARTIFACTFS_STATE="+o.state, "HOME="+dir, "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("run the command of the page: %v\n%s", err, out)
		}
		two, err := os.ReadFile(filepath.Join(dir, "work-fork", "new", "two.txt"))
		took := time.Since(begin)
		if err != nil || string(two) != "two\n" {
			t.Errorf("file in the fork: got %q, %v", two, err)
		}
		if got := w.sh(filepath.Join(dir, "work-fork"), "cat one.txt; ls new; git log -1 --format=%s"); got != "one\ntwo.txt\none file" {
			t.Errorf("files of the fork: got %q", got)
		}
		t.Logf("from the link to files in the fork with a %s token: %s, of which the browser %s", scope, took.Round(10*time.Millisecond),
			shown.Sub(begin).Round(10*time.Millisecond))
		if took > time.Minute {
			t.Errorf("from the link to files in the fork: %s", took)
		}
		for _, line := range tab.Console() {
			if !strings.Contains(line, "401 (Unauthorized)") { // the first answer, which asks for a token
				t.Errorf("console of the browser: %s", line)
			}
		}
	}
}
