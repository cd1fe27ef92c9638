package spawn

import (
	"slices"
	"testing"
)

// What a daemon is started with holds no login of the user who happens to start it, and all other settings.
func TestLaunchEnvironmentHasNoSecrets(t *testing.T) {
	got := Environment([]string{
		"HOME=/h", "CI_TOKEN=s1", "DB_PASSWORD=s2", "GIT_ASKPASS=/a", "GIT_CONFIG_COUNT=4",
		"GIT_CONFIG_KEY_0=http.https://h/.extraHeader", "GIT_CONFIG_VALUE_0=Authorization: s3",
		"GIT_CONFIG_KEY_1=safe.directory", "GIT_CONFIG_VALUE_1=*",
		"GIT_CONFIG_KEY_2=credential.helper", "GIT_CONFIG_VALUE_2=!echo password=s4",
		"GIT_CONFIG_KEY_3=core.autocrlf", "GIT_CONFIG_VALUE_3=input",
		"GIT_CONFIG_PARAMETERS='http.extraheader'='s5'",
	})
	want := []string{
		"HOME=/h", "GIT_ASKPASS=/a", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
		"GIT_CONFIG_KEY_1=core.autocrlf", "GIT_CONFIG_VALUE_1=input", "GIT_CONFIG_COUNT=2",
	}
	if !slices.Equal(got, want) {
		t.Errorf("launch environment: got %q, want %q", got, want)
	}
}
