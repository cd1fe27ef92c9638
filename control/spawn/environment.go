package spawn

import (
	"slices"
	"strconv"
	"strings"
)

// Environment returns the environment with which a new daemon is started. The daemon lives longer than the command that
// starts it, and serves mounts of other commands, so variables that look like secrets are left out. A mount request
// contains the environment of its own caller.
func Environment(env []string) []string {
	var kept []string
	var keys, values []string // names and values of the kept git settings (GIT_CONFIG_KEY_n, GIT_CONFIG_VALUE_n)
	settings := map[string]string{}
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		switch {
		case name == "GIT_CONFIG_COUNT", strings.HasPrefix(name, "GIT_CONFIG_KEY_"),
			strings.HasPrefix(name, "GIT_CONFIG_VALUE_"):
			settings[name] = value
		case name == "GIT_CONFIG_PARAMETERS" && secretSetting(value), secretName(name):
		default:
			kept = append(kept, v)
		}
	}
	n, _ := strconv.Atoi(settings["GIT_CONFIG_COUNT"])
	for i := range min(n, len(settings)) {
		key, value := settings["GIT_CONFIG_KEY_"+strconv.Itoa(i)], settings["GIT_CONFIG_VALUE_"+strconv.Itoa(i)]
		if key != "" && !secretSetting(key+"="+value) {
			keys, values = append(keys, key), append(values, value)
		}
	}
	for i := range keys {
		kept = append(kept, "GIT_CONFIG_KEY_"+strconv.Itoa(i)+"="+keys[i], "GIT_CONFIG_VALUE_"+strconv.Itoa(i)+"="+values[i])
	}
	if len(keys) > 0 {
		kept = append(kept, "GIT_CONFIG_COUNT="+strconv.Itoa(len(keys)))
	}
	return kept
}

// secretSetting reports whether the text of a git setting may contain a secret.
func secretSetting(s string) bool {
	s = strings.ToLower(s)
	return strings.Contains(s, "extraheader") || strings.Contains(s, "credential") || strings.Contains(s, "://") &&
		strings.Contains(s, "@")
}

// secretName reports whether a variable of this name is likely to contain a secret.
func secretName(name string) bool {
	name = strings.ToUpper(name)
	return slices.ContainsFunc([]string{"TOKEN", "PASSWORD", "PASSWD", "SECRET", "API_KEY", "APIKEY"},
		func(word string) bool { return strings.Contains(name, word) })
}
