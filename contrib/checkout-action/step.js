// Runs a step of checkout.sh. A shell drops variables whose names contain a hyphen, such as INPUT_FETCH-DEPTH, so they are renamed.
const { spawnSync } = require("child_process");
const path = require("path");

module.exports = (step) => {
    const env = { ...process.env };
    for (const [name, value] of Object.entries(process.env)) {
        if (name.startsWith("INPUT_")) {
            env[name.replaceAll("-", "_")] = value;
        }
    }
    const run = spawnSync("sh", [path.join(__dirname, "checkout.sh"), step], { stdio: "inherit", env });
    process.exit(run.status ?? 1);
};
