package main

import (
	"slices"
	"testing"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/serving"
)

func TestHidden(t *testing.T) {
	for s, want := range map[string][]string{
		"ARTIFACTFS_TOKEN=abc":                    {"abc"},
		"ARTIFACTFS_TOKEN=":                       nil,
		"ARTIFACTFS_TOKEN_FILE=/etc/token":        nil,
		"https://user:secret@git.example/app.git": {"user:secret"},
		"HTTPS://token@git.example/app.git":       {"token"},
		"ARTIFACTFS_REMOTE=http://u:p@a/b@c":      {"u:p"},
		"--session-remote=https://u:p@[::1]:80/x": {"u:p"},
		"ssh://git@git.example/app.git":           nil,
		"ssh://git:secret@git.example/app.git":    {"secret"},
		"https://git.example/app.git?to=a@b":      nil,
		"https://git.example/a@b":                 nil,
		"git@git.example:team/app.git":            nil,
		"https://":                                nil,
		"":                                        nil,

		"git fetch https://u:p@a/b ssh://git:q@c/d && curl https://e": {"u:p", "q"},
		"https://a/?next=https://u:p@b/":                              {"u:p"},
		"ssh://git@a https://token@b":                                 {"token"},
		"https://u:p@a,https://v:q@b":                                 {"u:p", "v:q"},
	} {
		var got []string
		for _, r := range serving.Hidden(s) {
			got = append(got, s[r.From:r.To])
		}
		if !slices.Equal(got, want) {
			t.Errorf("hidden(%q) = %q, want %q", s, got, want)
		}
	}
}
