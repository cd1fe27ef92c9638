package main

import (
	"github.com/artifactfs/artifactfs/cmd/artifactfs/serving"
	"testing"
)

func TestHidden(t *testing.T) {
	for s, want := range map[string]string{
		"ARTIFACTFS_TOKEN=abc":                    "abc",
		"ARTIFACTFS_TOKEN=":                       "",
		"ARTIFACTFS_TOKEN_FILE=/etc/token":        "",
		"https://user:secret@git.example/app.git": "user:secret",
		"HTTPS://token@git.example/app.git":       "token",
		"ARTIFACTFS_REMOTE=http://u:p@a/b@c":      "u:p",
		"--session-remote=https://u:p@[::1]:80/x": "u:p",
		"ssh://git@git.example/app.git":           "",
		"ssh://git:secret@git.example/app.git":    "secret",
		"https://git.example/app.git?to=a@b":      "",
		"https://git.example/a@b":                 "",
		"git@git.example:team/app.git":            "",
		"https://":                                "",
		"":                                        "",
	} {
		if from, to := serving.Hidden(s); s[from:max(from, to)] != want {
			t.Errorf("hidden(%q) = %q, want %q", s, s[from:max(from, to)], want)
		}
	}
}
