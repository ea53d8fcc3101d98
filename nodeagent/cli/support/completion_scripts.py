"""Completion scripts of the shells. The scripts only ask nodeagent for completions, and contain no list of commands."""

_BASH = r"""# bash completion for nodeagent
_nodeagent() {
    local current=${COMP_WORDS[COMP_CWORD]} IFS=$'\n'
    local -a answer
    mapfile -t answer < <(nodeagent completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    [ "$current" = "=" ] && current=
    case ${answer[0]-} in
    files) compopt -o filenames; COMPREPLY=($(compgen -f -- "$current")) ;;
    directories) compopt -o filenames; COMPREPLY=($(compgen -d -- "$current")) ;;
    commands) COMPREPLY=($(compgen -c -- "$current")) ;;
    *) COMPREPLY=("${answer[@]:1}"); COMPREPLY=("${COMPREPLY[@]%%$'\t'*}") ;;
    esac
}
complete -F _nodeagent nodeagent
"""

_ZSH = r"""#compdef nodeagent
_nodeagent() {
    local -a answer described
    local line meaning
    answer=("${(@f)$(nodeagent completion words -- "${(@)words[2,CURRENT-1]}" "$PREFIX" 2>/dev/null)}")
    case $answer[1] in
    files) _files ;;
    directories) _files -/ ;;
    commands) _command_names -e ;;
    *)
        for line in "${(@)answer[2,-1]}"; do
            meaning=${line#*$'\t'}
            described+=("${${line%%$'\t'*}//:/\\:}${meaning:+:$meaning}")
        done
        _describe nodeagent described
        ;;
    esac
}
if [ "$funcstack[1]" = _nodeagent ]; then
    _nodeagent "$@"
else
    compdef _nodeagent nodeagent
fi
"""

_FISH = r"""# fish completion for nodeagent
function __nodeagent_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l answer (nodeagent completion words -- $words[2..-1] "$current" 2>/dev/null)
    switch "$answer[1]"
        case files
            __fish_complete_path "$current"
        case directories
            __fish_complete_directories "$current"
        case commands
            complete -C "$current"
        case '*'
            string join \n -- $answer[2..-1]
    end
end
complete -c nodeagent -f -a '(__nodeagent_complete)'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
"""Text of the completion script, by shell."""

PLACES = {"bash": "bash-completion/completions/nodeagent", "zsh": "zsh/site-functions/_nodeagent"}
"""Path at which the script is installed for bash and zsh, below /usr/share or /usr/local/share."""
FISH_PLACE = "nodeagent.fish"
"""File name of the script for fish. It is installed in /etc/fish/completions, because fish doesn't search /usr/local/share."""
