package agenthook

import (
	"os"
	"path/filepath"
	"testing"
)

// geminiHost is a host with a mount at root, and with the home directory of a user of gemini.
type geminiHost struct {
	t                        *testing.T
	home, gitDir, root, chat string
}

func (h *geminiHost) write(path, text string) {
	h.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// TestGeminiChats checks that the directory is the one in which gemini looks for conversations.
func TestGeminiChats(t *testing.T) {
	for _, c := range []struct {
		projects string
		marks    map[string]string
		want     string
	}{
		{want: "app"},
		{projects: `no JSON`, want: "app"},
		{projects: `{"projects":{"/srv/app":"mine"}}`, want: "mine"},
		{projects: `{"projects":{"/srv/app":"../mine"}}`, want: "app"},
		{projects: `{"projects":{"/srv/app":"app"}}`, marks: map[string]string{"tmp/app": "/b/app"}, want: "app-1"},
		{projects: `{"projects":{"/b/app":"app","/c/app":"app-1"}}`, want: "app-2"},
		{marks: map[string]string{"history/app": "/b/app", "tmp/x": "/srv/app\n"}, want: "x"},
		{marks: map[string]string{"tmp/app": ""}, want: "app-1"},
	} {
		home := t.TempDir()
		h := geminiHost{t: t}
		if c.projects != "" {
			h.write(filepath.Join(home, "projects.json"), c.projects)
		}
		for name, owner := range c.marks {
			h.write(filepath.Join(home, name, geminiMark), owner)
		}
		for range 2 {
			got, err := geminiChats(home, "/srv/app")
			if err != nil || got != filepath.Join(home, "tmp", c.want, "chats") {
				t.Errorf("%+v: got %s, %v", c, got, err)
			}
		}
		if owner, _ := geminiOwner(filepath.Join(home, "tmp"), c.want); owner != "/srv/app" {
			t.Errorf("%+v: mark %q", c, owner)
		}
	}
	for dir, want := range map[string]string{"/x/-My.App__one-": "my-app-one", "/": "project", "/é": "project"} {
		if got := geminiName(dir, 0); got != want {
			t.Errorf("name of %s: got %s, want %s", dir, got, want)
		}
	}
}
