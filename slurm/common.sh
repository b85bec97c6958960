# Sourced by the job scripts: says things with the job's name, sets up the site, finds the program.

say() { printf '%s slurm: %s\n' "$(date '+%F %T')" "$*"; }
die() { say "$*" >&2; exit 6; }

# sbatch runs a copy of the script, so the repository is where sbatch was called.
[ -e slurm/common.sh ] || die "submit from the repository's top folder (sbatch --chdir names another one): slurm/common.sh is not in $PWD"
if [ -e slurm/site.sh ]; then . slurm/site.sh; fi

# TESSERA names the program; else the one on PATH; else the one built here.
find_tessera() {
  local program
  for program in "${TESSERA:-}" "$(command -v tessera)" "$PWD/build/host/tessera"; do
    if [ -n "$program" ] && [ -x "$program" ]; then echo "$program"; return; fi
    [ -z "$program" ] || [ "$program" != "${TESSERA:-}" ] || die "TESSERA=$program is no program that can be run"
  done
  die "found no tessera: set TESSERA to it, put it on PATH, or build it here with scripts/quickstart"
}
